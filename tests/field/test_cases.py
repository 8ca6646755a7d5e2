"""The field log's cases, of the areas that are built by now: a test each, or a reason.

Those of memory, of endpoints and of installing stand in `fallback_cases.py`.

A name is `file::function` below tests/; that each exists is what is tested here, that it holds is
its own business.
"""

from __future__ import annotations

import ast
import re
import runpy
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
    "F-PC-01": (
        "field/test_reuse.py::test_what_is_called_reused_was_not_decoded",
        "unit/runtime/test_local.py::test_off_cold_and_warm_are_the_same_bits",
        "e2e/test_same_bits.py::test_off_cold_and_warm_are_equal",
        "e2e/test_why.py::test_settings_that_differ",
    ),
    "F-PC-02": (
        "field/test_snapshots.py::test_damaged_copies_poison_no_session",
        "field/test_snapshots.py::test_every_damaged_copy_is_a_clean_miss",
        "attacks/test_snapshots.py::test_every_damaged_copy_of_the_generator_is_a_clean_miss",
        "unit/engines/test_memory.py::test_failed_restores_leave_nothing_behind",
        "e2e/test_snapshot_damage.py::test_five_hundred_failed_restores_poison_nothing",
    ),
    "F-PC-03": (
        "field/test_snapshots.py::test_one_byte_of_the_weights_is_another_model",
        "unit/store/test_snapshots.py::test_every_hard_field_separates_and_soft_ones_are_told",
        "unit/engines/test_llamacpp.py::test_fingerprint_names_what_changes_numbers",
        "e2e/test_why.py::test_fields_that_differ",
        "e2e/test_lora.py::test_the_model_and_its_adapters_share_no_snapshot",
    ),
    "F-PC-04": (
        "field/test_snapshots.py::test_what_is_no_snapshot_under_its_name",
        "field/test_snapshots.py::test_nothing_is_kept_of_nothing",
        "field/test_snapshots.py::test_a_store_that_is_gone_leaves_the_session_warm",
        "e2e/test_private_store.py::test_what_is_planted_in_a_snapshots_place_is_never_used",
        "e2e/test_private_store.py::test_a_warm_session_survives_what_is_planted",
    ),
    "F-PC-05": (
        "field/test_reuse.py::test_half_a_line_then_the_whole_line",
        "field/test_reuse.py::test_other_spellings_are_other_prompts",  # prompts/03, prompts/14
        "field/test_prompts.py::test_tokens_at_a_seam_are_compared_and_not_texts",
        "field/test_templates.py::test_a_stale_clock_is_never_reused",  # templates/01, templates/02
        "field/test_templates.py::test_a_day_in_a_template_keeps_what_stands_before_it",
        "unit/runtime/test_local_chat.py::test_tokens_that_were_generated_stay_as_they_are",
        "e2e/test_boundaries.py::test_pairs_that_merge_at_the_seam_are_cut_before_it",
    ),
    "F-PC-06": (
        "e2e/test_many_processes.py::test_a_file_that_is_being_written_is_not_read",
        "e2e/test_many_processes.py::test_one_process_reads_the_prompt_for_all",
        "crash/test_store_shared.py::test_mixed_work_of_many_processes",
        "unit/test_fileio.py::test_a_fault_at_any_step_leaves_old_or_new",
    ),
    "F-PC-07": (
        "field/test_storage.py::test_a_store_on_a_disk_too_small",
        "field/test_snapshots.py::test_every_damaged_copy_is_a_clean_miss",
        "field/test_snapshots.py::test_damage_behind_a_shorter_prefix_is_told",
        "e2e/test_many_processes.py::test_a_write_that_fails_leaves_nothing",
        "crash/test_store_faults.py::test_a_save_that_fails_anywhere_is_skipped",
    ),
    "F-PC-08": (
        "field/test_snapshots.py::test_a_snapshot_is_as_long_as_its_prompt",
        "e2e/test_relayout.py::test_a_snapshot_of_one_context_length_serves_every_other",
    ),
    "F-PC-09": (
        "field/test_reuse.py::test_prefixes_longer_than_the_window",
        "e2e/test_same_bits.py::test_off_cold_and_warm_are_equal",  # gemma 3 among them
        "unit/engines/test_memory.py::test_a_window_whose_ring_came_round_is_not_cut",
    ),
    "F-PC-10": (
        "field/test_reuse.py::test_rounds_of_two_prompts",
        "unit/engines/test_walk.py::test_any_walk_ends_where_the_calls_that_are_left_end",
        "e2e/test_turns.py::test_another_conversation_in_between_changes_nothing",
    ),
    "F-PC-11": (
        "field/test_reuse.py::test_thoughts_that_the_template_cuts_out",
        "unit/runtime/test_local_turns.py::test_thinking_that_is_cut_out_leaves_the_older_turns",
    ),
    "F-ST-01": (
        "field/test_storage.py::test_a_conversion_killed_at_any_moment",
        "field/test_storage.py::test_a_conversion_onto_a_disk_that_becomes_full",
        "field/test_storage.py::test_a_conversion_onto_a_disk_too_small",
        "e2e/test_convert_process.py::test_killed_at_ten_random_points_no_file_has_the_name",
        "unit/runtime/test_tether.py::test_a_conversion_killed_during_the_proof_leaves_no_process",
    ),
    "F-ST-02": (
        "e2e/test_many_processes.py::test_a_user_without_a_home_gets_answers",
        "field/test_storage.py::test_a_home_that_cannot_be_made",
        "unit/test_paths.py::test_without_the_variable_the_platform_decides",
        "unit/test_paths.py::test_a_user_without_a_home_has_a_folder_that_cannot_be_made",
    ),
    "F-ST-03": (
        "e2e/test_many_processes.py::test_a_folder_that_cannot_be_written_is_read",
        "e2e/test_many_processes.py::test_a_read_only_mount_is_read",
        "field/test_storage.py::test_nothing_is_written_next_to_a_model",
    ),
    "F-ST-04": (
        "e2e/test_many_processes.py::test_locks_that_do_not_work_cost_no_answer",
        "e2e/test_many_processes.py::test_a_killed_owner_does_not_block",
        "unit/store/disk/test_flight.py::test_a_lock_that_never_answers_is_given_up",
        "unit/store/disk/test_place.py::test_a_network_folder_is_left_alone",
    ),
    "F-ST-05": (
        "unit/catalog/test_download.py::test_a_cut_transfer_goes_on_by_itself",
        "unit/catalog/test_download.py::test_a_server_that_ignores_ranges_sends_it_anew",
        "unit/catalog/test_download.py::test_wrong_content_is_deleted_and_said",  # 0 bytes as well
        "unit/catalog/test_download.py::test_a_damaged_part_is_deleted_once_and_not_kept_for_ever",
        "unit/catalog/test_hub.py::test_too_small_a_disk_is_told_before_the_weights",
        "unit/catalog/test_hub.py::test_offline_opens_no_connection",
    ),
    "F-ST-06": (
        "field/test_storage.py::test_two_processes_stay_below_the_cap",
        "crash/test_store_shared.py::test_two_processes_stay_below_a_cap_of_20_mb",
        "crash/test_store_shared.py::test_a_small_disk_is_never_filled",
        "e2e/test_many_processes.py::test_snapshots_stay_below_their_limit",
        "unit/store/disk/test_eviction.py::test_what_is_in_use_stays_with_its_base",
        "unit/store/disk/test_eviction.py::test_temporaries_of_the_dead_are_orphans",
    ),
}
TESTED |= runpy.run_path(str(HERE / "fallback_cases.py"))["TESTED"]
REASONS = {
    "F-GN-07": "there is no JSON mode yet: neither the command line nor the API takes a schema",
    "F-CV-09": "there is no conversion to ONNX yet, so no graph and no data file to leave behind",
}
WANTED = (
    *(f"F-CV-{n:02}" for n in range(1, 11)),
    *(f"F-LD-{n:02}" for n in range(1, 11)),
    *(f"F-GN-{n:02}" for n in range(1, 11)),
    *(f"F-CL-{n:02}" for n in range(1, 6)),
    *(f"F-PC-{n:02}" for n in range(1, 12)),
    *(f"F-ST-{n:02}" for n in range(1, 7)),
    *(f"F-MM-{n:02}" for n in range(1, 10)),
    *(f"F-CF-{n:02}" for n in range(1, 11)),
    *(f"F-PK-{n:02}" for n in range(1, 7)),
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
