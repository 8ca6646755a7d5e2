"""The field log's cases of conversion, loading, generation and command line: a test each, or a reason.

A name is `file::function` below tests/; that each exists is what is tested here, that it holds is
its own business.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent

TOKENIZER = "unit/converters/test_tokenizer.py"

TESTED: dict[str, tuple[str, ...]] = {
    "F-CV-01": (
        "field/test_tokenizer.py::test_a_tokenizer_that_cannot_be_carried_over_is_refused",
        "field/test_hf.py::test_refused_with_nothing_written",
    ),
    "F-CV-02": ("field/test_hf.py::test_converts_and_runs",),
    "F-CV-03": (
        "field/test_hf.py::test_refused_with_nothing_written",
        "unit/converters/test_plan.py::test_missing_shards_are_all_named",
    ),
    "F-CV-04": ("field/test_tokenizer.py::test_tokens_added_by_a_fine_tune_are_printed",),
    "F-CV-05": (
        f"{TOKENIZER}::test_added_tokens_json_may_repeat_and_skip_but_not_contradict",
        "field/test_tokenizer.py::test_a_tokenizer_that_cannot_be_carried_over_is_refused",
    ),
    "F-CV-06": (
        "field/test_hf.py::test_refused_with_nothing_written",
        "field/test_safetensors.py::test_refused_as_weights",
        "unit/converters/test_write.py::test_a_weight_beyond_f16_never_becomes_infinite",
    ),
    "F-CV-07": ("field/test_tokenizer.py::test_merges_in_either_spelling_make_the_same_file",),
    "F-CV-08": (
        "field/test_tokenizer.py::test_the_end_of_text_comes_from_the_file_trusted_most",
        "field/test_hf.py::test_the_end_of_text_is_written_only_where_the_checkpoint_names_it",
    ),
    "F-CV-10": ("field/test_safetensors.py::test_refused_as_weights",),
    "F-LD-01": ("field/test_gguf.py::test_refused_by_info_and_run",),
    "F-LD-02": (
        "field/test_gguf.py::test_refused_by_info_and_run",
        "field/test_safetensors.py::test_refused_as_weights",
    ),
    "F-LD-03": (
        "field/test_gguf.py::test_refused_by_info_and_run",
        "attacks/test_gguf_headers.py::test_every_cut_of_a_whole_file_is_refused",
    ),
    "F-LD-04": ("field/test_gguf.py::test_refused_by_info_and_run",),
    "F-LD-05": ("field/test_gguf.py::test_refused_by_info_and_run",),
    "F-LD-06": ("field/test_gguf.py::test_refused_by_info_and_run",),
    "F-LD-07": (
        "field/test_command_line.py::test_any_path_opens",
        "field/test_hf.py::test_converts_and_runs",
    ),
    "F-LD-08": ("unit/engines/test_library.py::test_a_file_system_without_mmap_is_read",),
    "F-LD-09": (
        "field/test_gguf.py::test_refused_by_info_and_run",
        "unit/engines/test_library.py::test_the_library_s_own_refusals",
    ),
    "F-LD-10": (
        "field/test_gguf.py::test_links_to_a_model",
        "field/test_hf.py::test_a_link_in_a_model_cache_is_followed",
    ),
    "F-GN-01": (
        "field/test_generation.py::test_a_character_of_several_tokens_comes_whole",
        "field/test_prompts.py::test_an_answer_is_streamed_whole",
    ),
    "F-GN-02": ("field/test_generation.py::test_a_stop_text_over_several_tokens_is_found",),
    "F-GN-03": ("field/test_generation.py::test_what_waited_for_a_stop_text_is_shown_at_the_end",),
    "F-GN-04": (
        "field/test_generation.py::test_every_end_token_ends_the_turn",
        "field/test_generation.py::test_a_converted_model_ends_at_its_end_of_turn",
    ),
    "F-GN-05": (
        "field/test_templates.py::test_a_template_that_writes_the_beginning_gets_no_other",
    ),
    "F-GN-06": ("field/test_prompts.py::test_what_a_user_types_becomes_no_control_token",),
    "F-GN-08": ("field/test_templates.py::test_a_template_that_renders_chats",),
    "F-GN-09": ("field/test_templates.py::test_a_hostile_or_broken_template_is_one_line",),
    "F-GN-10": ("field/test_generation.py::test_a_full_context_ends_the_answer",),
    "F-CL-01": (
        "field/test_command_line.py::test_a_reader_that_has_enough_ends_it",
        "field/test_command_line.py::test_nobody_reads",
    ),
    "F-CL-02": (
        "field/test_command_line.py::test_redirected_output_is_the_text_alone",
        "field/test_command_line.py::test_redirected_progress_is_a_few_plain_lines",
        "field/test_command_line.py::test_a_terminal_gets_no_control_characters",
    ),
    "F-CL-03": (
        "field/test_command_line.py::test_code_pages",
        "unit/cli/test_plain.py::test_errors_name_any_file_under_every_code_page",
    ),
    "F-CL-04": (
        "field/test_command_line.py::test_streamed_or_not_is_one_text",
        "field/test_command_line.py::test_dashes_are_text",
    ),
    "F-CL-05": ("field/test_command_line.py::test_pieces_come_one_by_one",),
    "F-MM-03": ("field/test_gguf.py::test_accepted_by_info_and_run",),
    "F-MM-06": ("field/test_gguf.py::test_a_context_beyond_the_memory",),
    "F-MM-09": (
        "field/test_command_line.py::test_a_users_own_number_of_threads_wins",
        "unit/hw/test_cpu.py::test_quota_of_version_2",
        "unit/hw/test_cpu.py::test_a_group_of_version_1_below_the_root_counts",
    ),
    "F-PK-04": ("field/test_command_line.py::test_the_end_of_a_program_is_silent",),
}
REASONS = {
    "F-GN-07": "there is no JSON mode yet: neither the command line nor the API takes a schema",
    "F-CV-09": "there is no conversion to ONNX yet, so no graph and no data file to leave behind",
}
WANTED = (
    *(f"F-CV-{n:02}" for n in range(1, 11)),
    *(f"F-LD-{n:02}" for n in range(1, 11)),
    *(f"F-GN-{n:02}" for n in range(1, 11)),
    *(f"F-CL-{n:02}" for n in range(1, 6)),
    "F-MM-03",
    "F-MM-06",
    "F-MM-09",
    "F-PK-04",
)


@pytest.mark.parametrize("case", WANTED)
def test_a_case_has_a_test_or_a_reason(case: str) -> None:
    """Each named test is there under that name; each reason is a sentence."""
    if case in REASONS:
        assert case not in TESTED
        assert len(REASONS[case].split()) > 5
        return
    for name in TESTED[case]:
        path, _, function = name.partition("::")
        tree = ast.parse((TESTS / path).read_text("utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
