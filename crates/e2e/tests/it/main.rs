//! Runs the suites: `cargo test -p fuse-e2e [filter]`.
//!
//! A harness of its own, because the stack that most tests share must be taken down at the end, and that nothing is
//! left then is a result like any other.

mod abuse;
mod artifacts;
mod authority;
mod bad_input;
mod bad_links;
mod clock;
mod containers;
mod examples;
mod exec;
mod failing;
mod fleet;
mod full_disk;
mod gpus;
mod health;
mod hello;
mod host_failures;
mod interrupted_build;
mod layers;
mod layers_elsewhere;
mod lifecycle;
mod local;
mod machine;
mod migrate;
mod network;
mod restarts;
mod secrets;
mod services;
mod services_copied;
mod suite;
mod upgrade;
mod vm_death;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use suite::Suite;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let suite = match Suite::new() {
        Ok(suite) => suite,
        Err(error) => {
            suite::say(&format!("{error:#}"));
            return ExitCode::FAILURE;
        }
    };
    let trials = [
        with_variants,
        fleets,
        trials,
        layers,
        refusals,
        upgrade::trials,
    ]
    .into_iter();
    let trials = trials.flat_map(|of| of(&suite)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let clean = suite.teardown();
    if conclusion.has_failed() || !clean {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Guests of images with more in them than the base; the longest of all.
fn with_variants(suite: &Suite) -> Vec<Trial> {
    vec![
        suite.slow_trial(
            "services_copied::snapshots_forks_and_a_move",
            services_copied::snapshots_forks_and_a_move,
        ),
        suite.slow_trial(
            "services::the_example_from_up_to_drain",
            services::the_example_from_up_to_drain,
        ),
        suite.slow_trial(
            "services::those_that_do_not_start_say_why",
            services::those_that_do_not_start_say_why,
        ),
        suite.trial(
            "services::the_web_application_serves",
            services::the_web_application_serves,
        ),
    ]
}

/// One line a test; the long ones first, so that the last to finish is a short one.
fn trials(suite: &Suite) -> Vec<Trial> {
    vec![
        suite.trial(
            "restarts::everything_survives_kill_9",
            restarts::everything_survives_kill_9,
        ),
        suite.trial(
            "examples::the_ci_runner_and_a_fork_of_it",
            examples::the_ci_runner_and_a_fork_of_it,
        ),
        suite.trial("examples::offline_ones_run", examples::offline_ones_run),
        suite.trial(
            "lifecycle::from_snapshot_to_drain",
            lifecycle::from_snapshot_to_drain,
        ),
        suite.trial(
            "clock::guests_know_what_time_it_is",
            clock::guests_know_what_time_it_is,
        ),
        suite.trial("local::up_status_down_up", local::up_status_down_up),
        suite.trial(
            "abuse::the_control_channel_answers",
            abuse::the_control_channel_answers,
        ),
        suite.trial(
            "network::isolation_egress_and_published_ports",
            network::isolation_egress_and_published_ports,
        ),
        suite.trial(
            "secrets::secret_is_only_in_the_guest",
            secrets::secret_is_only_in_the_guest,
        ),
        suite.trial(
            "secrets::failing_build_step_redacts",
            secrets::failing_build_step_redacts,
        ),
        suite.trial(
            "restarts::create_cut_off_by_an_orchestrator_crash",
            restarts::create_cut_off_by_an_orchestrator_crash,
        ),
        suite.trial(
            "restarts::create_cut_off_by_an_agent_crash",
            restarts::create_cut_off_by_an_agent_crash,
        ),
        suite.trial("hello::up_exec_destroy", hello::up_exec_destroy),
        suite.trial(
            "health::verdict_follows_the_workload",
            health::verdict_follows_the_workload,
        ),
        suite.trial(
            "exec::bytes_streams_statuses_and_limits",
            exec::bytes_streams_statuses_and_limits,
        ),
        suite.trial("failing::run_phase", failing::run_phase),
        suite.trial(
            "failing::image_without_a_shell",
            failing::image_without_a_shell,
        ),
        suite.trial("failing::missing_image", failing::missing_image),
        suite.trial(
            "vm_death::guest_powers_itself_off",
            vm_death::guest_powers_itself_off,
        ),
        suite.trial(
            "vm_death::vmm_is_killed_during_an_exec",
            vm_death::vmm_is_killed_during_an_exec,
        ),
    ]
}

/// The layer cache.
fn layers(suite: &Suite) -> Vec<Trial> {
    vec![
        suite.trial(
            "layers::a_failed_step_resumes",
            layers::a_failed_step_resumes,
        ),
        suite.trial(
            "layers::built_once_found_again",
            layers::built_once_found_again,
        ),
        suite.trial(
            "interrupted_build::while_a_snapshot_is_taken",
            interrupted_build::while_a_snapshot_is_taken,
        ),
        suite.trial(
            "layers_elsewhere::on_another_host",
            layers_elsewhere::on_another_host,
        ),
        suite.trial(
            "layers_elsewhere::not_for_another_tenant",
            layers_elsewhere::not_for_another_tenant,
        ),
        suite.trial(
            "layers_elsewhere::not_on_another_architecture",
            layers_elsewhere::not_on_another_architecture,
        ),
    ]
}

/// More hosts than one, and the ways between them.
fn fleets(suite: &Suite) -> Vec<Trial> {
    vec![
        suite.trial(
            "bad_links::is_cut_for_a_minute",
            bad_links::is_cut_for_a_minute,
        ),
        suite.trial(
            "bad_links::loses_every_fifth_packet",
            bad_links::loses_every_fifth_packet,
        ),
        suite.trial(
            "fleet::placement_and_lost_hosts",
            fleet::placement_and_lost_hosts,
        ),
        suite.trial(
            "gpus::bound_attached_and_given_back",
            gpus::bound_attached_and_given_back,
        ),
        suite.trial(
            "artifacts::a_seed_moves_to_another_host",
            artifacts::a_seed_moves_to_another_host,
        ),
        suite.trial(
            "migrate::a_host_is_emptied_and_taken_back",
            migrate::a_host_is_emptied_and_taken_back,
        ),
    ]
}

/// What ends with a message instead of an environment.
fn refusals(suite: &Suite) -> Vec<Trial> {
    vec![
        suite.trial(
            "full_disk::in_the_middle_of_a_snapshot",
            full_disk::in_the_middle_of_a_snapshot,
        ),
        suite.trial("host_failures::disk_is_full", host_failures::disk_is_full),
        suite.trial(
            "host_failures::second_instances_and_ports_in_use",
            host_failures::second_instances_and_ports_in_use,
        ),
        suite.trial(
            "host_failures::missing_pieces_are_named",
            host_failures::missing_pieces_are_named,
        ),
        suite.trial(
            "failing::run_that_does_not_return",
            failing::run_that_does_not_return,
        ),
        suite.trial("bad_input::fusefile", bad_input::fusefile),
        suite.trial(
            "bad_input::impossible_fusefiles",
            bad_input::impossible_fusefiles,
        ),
        suite.trial(
            "bad_input::wrong_tokens_name_the_layer",
            bad_input::wrong_tokens_name_the_layer,
        ),
    ]
}
