//! Planted faults are found.

use taskyard_simulator::{Mask, Plan, PlantedFault, Scenario, run};

use crate::short_plans;

/// Each must be found by the first so many short plans.
pub const PLANS_MAX: usize = 100;

fn check_planted(wanted: Scenario) {
    for (fault, scenario) in PlantedFault::ALL.into_iter().filter(|planted| planted.1 == wanted) {
        let is_found = |plan: Plan| run(&plan, &Mask::default(), Some(fault)).violation.is_some();
        let found = short_plans(scenario).take(PLANS_MAX).any(is_found);
        assert!(found, "{fault:?} is not found by {PLANS_MAX} runs of {}", scenario.name());
    }
}

#[test]
fn planted_faults_of_one_server_are_found() {
    check_planted(Scenario::Memory);
}

#[test]
fn planted_faults_of_servers_that_share_a_database_are_found() {
    check_planted(Scenario::Shared);
}

#[test]
fn planted_faults_of_clients_on_a_network_are_found() {
    check_planted(Scenario::Network);
}

#[test]
fn planted_faults_of_workers_are_found() {
    check_planted(Scenario::Workers);
}

#[test]
fn planted_faults_of_estimates_are_found() {
    check_planted(Scenario::Estimates);
}

#[test]
fn planted_faults_of_the_embedded_store_are_found() {
    check_planted(Scenario::Embedded);
}

#[test]
fn planted_faults_of_a_server_that_crashes_often_are_found() {
    check_planted(Scenario::Crashes);
}

/// Promises that are judged by one judge alone: others find these faults at other seeds, if at all.
#[test]
fn planted_faults_are_found_by_their_own_judge() {
    for (fault, scenario, judge) in [
        (PlantedFault::CutPayload, Scenario::Memory, "payload"),
        (PlantedFault::KeepLeftSession, Scenario::Shared, "sessions"),
        (PlantedFault::HalveEstimates, Scenario::Estimates, "estimates"),
        (PlantedFault::DropLastFrame, Scenario::Crashes, "damage"),
        (PlantedFault::SwapWrites, Scenario::Crashes, "damage"),
        (PlantedFault::SplitLead, Scenario::Workers, "leader"),
    ] {
        let is_found = |plan: Plan| {
            let violation = run(&plan, &Mask::default(), Some(fault)).violation;
            violation.is_some_and(|violation| violation.judge == judge)
        };
        let found = short_plans(scenario).take(PLANS_MAX).any(is_found);
        assert!(found, "{fault:?} is not found by {judge} in {PLANS_MAX} runs");
    }
}

/// The table of docs/testing.md was not written again when faults were added.
#[test]
fn the_documents_list_all_planted_faults() {
    let text = include_str!("../../../../docs/testing.md");
    let (_, table) = text.split_once("| planted fault | scenario |").expect("it has a table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let rows: Vec<_> = rows.map(|row| row.split('|').skip(1).take(2).collect::<String>()).collect();
    let row =
        |(fault, scenario): (PlantedFault, Scenario)| format!(" `{fault:?}`  {} ", scenario.name());
    assert_eq!(rows, PlantedFault::ALL.map(row));
    let readme = include_str!("../../../../README.md");
    let count = PlantedFault::ALL.len();
    assert!(readme.contains(&format!("finds {count} of {count} planted faults")), "the README");
}

/// The first seeds that find them: a run of a pool takes too long to look for them here.
#[test]
fn planted_faults_of_a_pool_are_found() {
    let seeds = [
        (PlantedFault::IgnoreLead, 262),
        (PlantedFault::ReuseLead, 0),
        (PlantedFault::BelieveDeadBackends, 82),
        (PlantedFault::KeepAllocation, 0),
        (PlantedFault::ForgetReports, 267),
        (PlantedFault::StartUnsettled, 136),
        (PlantedFault::ForgetSeen, 9),
        (PlantedFault::LoseRequeued, 0),
        (PlantedFault::BelieveOldData, 2),
        (PlantedFault::RepeatLastFrame, 0),
    ];
    for (fault, seed) in seeds {
        let report = run(&Plan::draw(seed, Scenario::Pool), &Mask::default(), Some(fault));
        assert!(report.violation.is_some(), "{fault:?} is not found by seed {seed}");
    }
}
