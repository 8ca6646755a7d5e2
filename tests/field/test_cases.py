"""The field log's cases of conversion, loading, generation and command line: a test each, or a reason.

A name is `file::function` below tests/; that each exists is what is tested here, that it holds is
its own business.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent

HERE = Path(__file__).resolve().parent
TOKENIZER = "unit/converters/test_tokenizer.py"

TESTED: dict[str, tuple[str, ...]] = {
    "F-CV-01": (
        "field/test_tokenizer.py::test_a_tokenizer_that_cannot_be_carried_over_is_refused",
        "field/test_tokenizer.py::test_a_refusal_names_what_there_is_instead",
        "field/test_hf.py::test_refused_with_nothing_written",
    ),
    "F-CV-02": (
        "field/test_hf.py::test_converts_and_runs",
        "field/test_hf.py::test_refused_with_nothing_written",  # hf/14
        "field/test_gguf.py::test_accepted_by_info_and_run",  # gguf/48
        "unit/runtime/test_proof.py::test_a_faithful_file_is_proven",  # one token is decoded
    ),
    "F-CV-03": (
        "field/test_hf.py::test_refused_with_nothing_written",
        "field/test_hf.py::test_shards_without_an_index_are_all_used",
        "unit/converters/test_plan.py::test_missing_shards_are_all_named",
    ),
    "F-CV-04": ("field/test_tokenizer.py::test_tokens_added_by_a_fine_tune_are_printed",),
    "F-CV-05": (
        f"{TOKENIZER}::test_added_tokens_json_may_repeat_and_skip_but_not_contradict",
        "field/test_tokenizer.py::test_a_tokenizer_that_cannot_be_carried_over_is_refused",
        "field/test_tokenizer.py::test_each_id_that_is_no_index_is_refused",
    ),
    "F-CV-06": (
        "field/test_hf.py::test_refused_with_nothing_written",
        "field/test_safetensors.py::test_refused_as_weights",
        "field/test_safetensors.py::test_values_beyond_f16_stop_it_or_keep_their_range",
        "field/test_safetensors.py::test_weights_that_are_no_numbers_are_reported",
        "unit/converters/test_write.py::test_a_weight_beyond_f16_never_becomes_infinite",
        "unit/converters/test_write.py::test_weights_that_are_no_numbers_are_reported",
    ),
    "F-CV-07": (
        "field/test_tokenizer.py::test_merges_in_either_spelling_make_the_same_file",
        "field/test_tokenizer.py::test_a_tokenizer_that_cannot_be_carried_over_is_refused",  # 03, 04
    ),
    "F-CV-08": (
        "field/test_tokenizer.py::test_the_end_of_text_comes_from_the_file_trusted_most",
        "field/test_hf.py::test_the_end_of_text_comes_from_a_file_or_is_told_aloud",
        "field/test_hf.py::test_a_chat_model_without_an_end_is_refused",
        "field/test_gguf.py::test_accepted_by_info_and_run",  # gguf/49
    ),
    "F-CV-10": (
        "field/test_safetensors.py::test_refused_as_weights",
        "field/test_hf.py::test_refused_with_nothing_written",  # hf/18, hf/26
    ),
    "F-LD-01": (
        "field/test_gguf.py::test_refused_by_info_and_run",
        "unit/formats/test_sniff.py::test_a_web_page_shows_its_first_words",
    ),
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
    "F-LD-08": (
        "unit/engines/test_library.py::test_a_file_system_without_mmap_is_read",
        "unit/engines/test_library.py::test_what_cannot_be_mapped_is_read_only_where_it_fits",
    ),
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
        "field/test_prompts.py::test_a_raw_prompt_begins_once",
    ),
    "F-GN-06": (
        "field/test_prompts.py::test_what_a_user_types_becomes_no_control_token",
        "field/test_prompts.py::test_what_a_document_says_becomes_no_control_token",  # prompts/08
    ),
    "F-GN-08": (
        "field/test_templates.py::test_a_template_renders_this",
        "field/test_templates.py::test_a_template_that_renders_chats",
        "field/test_templates.py::test_a_hostile_or_broken_template_is_one_line",
        "field/test_templates.py::test_a_template_s_own_refusal_reaches_the_user",  # templates/03
        "field/test_templates.py::test_a_clock_is_put_in_once_a_conversation",
        "field/test_templates.py::test_a_stale_clock_is_never_reused",
    ),
    "F-GN-09": (
        "field/test_templates.py::test_a_hostile_or_broken_template_is_one_line",
        "field/test_templates.py::test_a_hostile_template_is_converted_as_text",
        "field/test_templates.py::test_bombs_are_stopped_early",
        "field/test_templates.py::test_the_caller_s_messages_are_not_changed",
        "field/test_hf.py::test_refused_with_nothing_written",  # hf/17, hf/18
    ),
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


def test_every_case_has_its_sentence():
    """The README says what must happen in each case, and in each that a sample is for; of no other."""
    lines = (HERE / "README.md").read_text("utf-8").splitlines()
    said = [re.fullmatch(r"- \*\*(F-[A-Z]{2}-\d\d)\*\* (\S.+\.)", line) for line in lines]
    told = [found[1] for found in said if found]
    sampled = set(re.findall(r"F-[A-Z]{2}-\d\d", (HERE / "gen_inputs.py").read_text("utf-8")))
    assert sorted(told) == sorted({*WANTED, *sampled})
    assert len(told) == sum(line.startswith("- **F-") for line in lines)
