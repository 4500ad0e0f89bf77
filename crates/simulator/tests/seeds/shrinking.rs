//! Failing runs are made smaller, and what is printed about them repeats the failure.

use std::process::Command;
use std::time::Duration;

use taskyard_simulator::{Failure, Mask, Plan, PlantedFault, RunReport, Scenario, run, shrink};

use crate::planted::PLANS_MAX;
use crate::short_plans;

/// The first run that finds a planted fault.
fn find(fault: PlantedFault, scenario: Scenario) -> (Plan, RunReport) {
    let found = short_plans(scenario).take(PLANS_MAX).find_map(|plan| {
        let report = run(&plan, &Mask::default(), Some(fault));
        report.violation.is_some().then_some((plan, report))
    });
    found.expect("the fault is found")
}

fn shrunk(fault: PlantedFault, scenario: Scenario) -> (Plan, Failure) {
    let (plan, report) = find(fault, scenario);
    let judge = report.violation.as_ref().map(|violation| violation.judge);
    let failure = shrink(&plan, &Mask::default(), Some(fault), report, Duration::MAX);
    let failure = failure.expect("the run failed");
    assert_eq!(Some(failure.violation().judge), judge, "of {fault:?}");
    (plan, failure)
}

/// Each planted fault needs only a few calls. Those of the end of a run, which asks every server, are among the lines.
#[test]
fn a_shrunk_history_is_short_and_fails_again() {
    for (fault, scenario, lines_max) in [
        (PlantedFault::DropTouch, Scenario::Memory, 40),
        (PlantedFault::AcceptStaleAck, Scenario::Shared, 60),
        (PlantedFault::DropLastFrame, Scenario::Crashes, 20),
        (PlantedFault::PanicAtTake, Scenario::Memory, 40),
    ] {
        let (plan, failure) = shrunk(fault, scenario);
        let lines = failure.lines();
        assert!(lines.len() <= lines_max, "{fault:?}: {} lines\n{failure}", lines.len());
        let mask = Mask::keeping(&plan, &failure.kept()).expect("it is printed as it is read");
        let again = run(&plan, &mask, Some(fault));
        assert_eq!(again.violation.as_ref(), Some(failure.violation()), "{fault:?}");
    }
}

/// A panic used to end the process without a seed.
#[test]
fn a_panic_is_a_violation_with_its_place() {
    let (_, failure) = shrunk(PlantedFault::PanicAtTake, Scenario::Memory);
    let violation = failure.violation();
    assert_eq!(violation.judge, "panic");
    assert!(violation.sentence.contains("a planted panic"), "{violation}");
    assert!(violation.sentence.contains("planted_store.rs"), "{violation}");
}

#[test]
fn the_printed_commands_repeat_a_failure() {
    let (plan, failure) = shrunk(PlantedFault::HalveDelay, Scenario::Memory);
    let text = failure.to_string();
    let regression = format!("memory {} {}", plan.seed, failure.violation());
    assert!(text.lines().any(|line| line == regression), "{text}");
    let command =
        text.lines().find_map(|line| line.split_once("only this history: cargo xtask simulate "));
    let (_, args) = command.expect("it has a command");
    let output =
        Command::new(env!("CARGO_BIN_EXE_taskyard-simulator")).args(args.split(' ')).output();
    let output = output.expect("the simulator can be run");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains(&failure.violation().to_string()), "{shown}");
}
