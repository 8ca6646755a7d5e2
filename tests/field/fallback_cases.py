"""The cases of memory, of endpoints and of installing, and the tests that hold each; see `test_cases.py`."""

from __future__ import annotations

DEATHS = "unit/runtime/supervising/test_deaths_survived.py"
GOING_OUT = "unit/runtime/supervising/test_going_out.py"

TESTED: dict[str, tuple[str, ...]] = {
    "F-MM-01": (
        "e2e/test_plan.py::test_page_cache_is_not_used_memory",
        "e2e/test_plan.py::test_available_and_not_free_memory",
    ),
    "F-MM-02": (
        "e2e/test_plan.py::test_the_limit_of_a_container_counts",
        "e2e/test_plan.py::test_it_is_refused_before_it_is_killed",
        "unit/hw/test_memory.py::test_every_group_above_counts",
    ),
    "F-MM-03": (
        "field/test_gguf.py::test_accepted_by_info_and_run",
        "field/test_plan.py::test_a_context_of_two_billion_tokens",
        "unit/policy/test_plan.py::test_the_whole_context_is_told_and_not_taken",
    ),
    # Fixtures: a Jetson's device tree and its figures, not a Jetson.
    "F-MM-04": (
        "unit/hw/test_gpu.py::test_a_jetson_by_its_device_tree",
        "unit/policy/test_plan.py::test_unified_memory_is_counted_once",
        "e2e/test_plan.py::test_available_and_not_free_memory",
    ),
    # Fixtures: the driver's words in a log, and the rung that follows.
    "F-MM-05": (
        "unit/policy/test_deaths.py::test_g7_every_backends_words_are_the_same_error",
        "unit/policy/test_ladder.py::test_layers_leave_the_gpu",
        f"{DEATHS}::test_memory_takes_one_rung_and_it_stays",
        f"{DEATHS}::test_memory_that_the_engine_could_not_have_takes_a_rung_too",
    ),
    "F-MM-06": (
        "field/test_gguf.py::test_a_context_beyond_the_memory",
        "field/test_plan.py::test_all_of_it_asked_for",
    ),
    "F-MM-07": (
        "e2e/test_worker.py::test_g6_an_answer_goes_on_after_a_kill_at_any_token",
        "crash/test_oom.py::test_private_finishes_one_step_lower",
        "crash/test_oom.py::test_what_keeps_running_out_is_one_typed_error",
        "crash/test_faults.py::test_the_host_outlives_a_worker_that_never_works",
        f"{DEATHS}::test_a_second_death_is_the_end_with_the_first_error",
    ),
    "F-MM-08": (
        "unit/runtime/test_prefill.py::test_no_room_for_a_copy_is_no_failure",
        "unit/runtime/test_prefill.py::test_a_state_for_which_there_is_no_memory_is_a_miss",
        "unit/engines/test_lent.py::test_no_memory_is_a_memory_error",
        "crash/test_oom.py::test_private_finishes_one_step_lower",  # while a snapshot is written
    ),
    "F-MM-09": (
        "field/test_command_line.py::test_a_users_own_number_of_threads_wins",
        "unit/hw/test_cpu.py::test_quota_of_version_2",
        "unit/hw/test_cpu.py::test_a_group_of_version_1_below_the_root_counts",
        "e2e/test_plan.py::test_threads_follow_the_quota",
    ),
    "F-CF-01": (
        "field/test_sse.py::test_a_stream_is_read_by_its_table",
        "unit/cloud/test_sse.py::test_the_cut_of_the_network_makes_no_difference",
    ),
    "F-CF-02": (
        "field/test_sse.py::test_a_stream_is_read_by_its_table",
        "unit/cloud/test_chunks.py::test_only_the_first_choice_counts",
        "unit/cloud/test_endings.py::test_a_whole_completion_in_place_of_a_stream",
    ),
    "F-CF-03": (
        "field/test_sse.py::test_a_stream_is_read_by_its_table",
        "field/test_fallback.py::test_f_cf_03_half_an_answer_is_no_answer",
        "unit/cloud/test_reading.py::test_a_cut_anywhere_is_never_a_whole_answer",
    ),
    "F-CF-04": (
        f"{GOING_OUT}::test_f_cf_04_text_that_was_shown_is_never_asked_for_again",
        "field/test_fallback.py::test_f_cf_03_half_an_answer_is_no_answer",  # sse/20
        "field/test_fallback.py::test_f_cf_04_what_broke_off_before_any_text_may_be_asked_again",
        f"{GOING_OUT}::test_a_shown_text_is_taken_back_where_the_caller_says_so",
        "crash/test_oom.py::test_prefer_local_finishes_at_the_endpoint",
    ),
    "F-CF-05": (
        "field/test_http.py::test_a_failure_is_told_by_its_table",
        "field/test_fallback.py::test_f_cf_05_what_passes_is_waited_for",
        "field/test_fallback.py::test_f_cf_05_what_does_not_pass_ends_at_once",
    ),
    "F-CF-06": (
        "unit/cloud/test_address.py::test_every_spelling_of_a_base_reaches_the_one_path",
        "field/test_http.py::test_a_failure_is_told_by_its_table",  # http/10
    ),
    "F-CF-07": (
        "unit/cloud/test_tls.py::test_the_file_of_the_environment_is_trusted",
        "unit/cloud/test_tls.py::test_a_certificate_nobody_vouches_for",
        "unit/cloud/test_tls.py::test_loopback_never_goes_through_a_proxy",
        "attacks/test_canary.py::test_g5_no_proxy_sees_what_goes_to_loopback",
    ),
    "F-CF-08": (
        "field/test_sse.py::test_a_stream_is_read_by_its_table",
        "unit/cloud/test_chunks.py::test_thoughts_are_no_part_of_the_answer",
        "unit/cloud/test_endings.py::test_a_limit_spent_on_thoughts_is_told",
    ),
    "F-CF-09": (
        "field/test_sse.py::test_a_stream_is_read_by_its_table",
        "unit/cloud/test_patience.py::test_a_connection_has_its_limit",
        "unit/cloud/test_patience.py::test_the_first_byte_has_its_limit",
        "unit/cloud/test_patience.py::test_silence_between_bytes_has_its_limit",
        "unit/cloud/test_patience.py::test_a_slow_answer_that_goes_on_is_no_timeout",
    ),
    "F-CF-10": (
        "field/test_http.py::test_a_failure_is_told_by_its_table",  # http/09, http/14
        "unit/cloud/test_key.py::test_no_log_and_no_error_has_key_or_prompt",
        "unit/cloud/test_client.py::test_a_redirect_is_not_followed",
        "unit/test_config.py::test_g5_no_variable_changes_the_mode_or_the_endpoint",
        "attacks/test_canary.py::test_g5_no_variable_key_or_proxy_opens_a_route",
    ),
    "F-PK-01": (
        "unit/engines/test_built_for.py::test_a_library_for_a_newer_cpu",
        "unit/runtime/test_engine_probe.py::test_an_engine_that_dies_of_an_instruction",
        "e2e/test_plan.py::test_an_engine_built_for_another_cpu",
    ),
    "F-PK-02": (
        "unit/runtime/test_engine_probe.py::test_an_engine_for_another_libc",
        "unit/runtime/test_doctoring.py::test_an_engine_for_another_libc",
        "e2e/test_plan.py::test_an_engine_linked_to_another_libc",
    ),
    "F-PK-03": (
        "test_packaging.py::test_without_a_compiler_the_wheel_is_pure",
        "e2e/test_cli.py::test_without_an_engine_run_names_the_install_command",
        "field/test_fallback.py::test_f_pk_03_without_an_engine_the_endpoint_still_serves",
    ),
    "F-PK-04": (
        "field/test_command_line.py::test_the_end_of_a_program_is_silent",
        "e2e/test_worker_hosts.py::test_f_pk_04_a_program_ends_without_a_word",
    ),
    "F-PK-05": (
        "attacks/test_canary.py::test_g2_offline_makes_no_internet_call",
        "attacks/test_canary.py::test_g2_commands_work_without_a_network",
        "attacks/test_canary.py::test_g1_nothing_leaves_in_a_closed_mode_whatever_happens",
        "unit/catalog/test_hub.py::test_offline_opens_no_connection",
    ),
    "F-PK-06": (
        "e2e/test_worker.py::test_f_pk_06_a_worker_is_used_by_many_threads",
        "unit/runtime/supervising/test_cancelling.py::test_one_answer_at_a_time",
    ),
}
