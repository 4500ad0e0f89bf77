//! Estimates: where tasks are in the queue, and words for when a task will start, when a tube drains, and how many estimates held.

use taskyard::HttpError;
use taskyard_core::{Command, Error, Position, Reply, TaskId, TubeName};
use taskyard_wire::http::{
    CalibrationAnswer, EstimateAnswer, NoEstimateAnswer, QueueAnswer, TubeAnswer,
};

use crate::connect::{ConnectArgs, block_on, unexpected_reply};
use crate::progress::grouped;
use crate::units;

/// Where the waiting ones of these tasks are in the queue. A server of a version without positions shows none.
pub fn positions(
    connect: &ConnectArgs,
    tube: &TubeName,
    ids: &[TaskId],
) -> anyhow::Result<Vec<Position>> {
    let http = connect.http()?;
    let command = Command::Positions { tube: tube.clone(), ids: ids.to_vec() };
    block_on(async {
        match http.execute_one(command).await {
            Ok(Reply::Positions(positions)) => Ok(positions),
            Ok(_) => Err(unexpected_reply("positions")),
            // An unknown endpoint arrives as an error of the store; the tube may have been dropped meanwhile.
            Err(HttpError::Refused { error: Error::Store(_) | Error::TubeNotFound(_), .. }) => {
                Ok(Vec::new())
            }
            Err(error) => Err(error.into()),
        }
    })
}

/// In which time a task will start; `-` if it does not wait.
pub fn start(queue: Option<&QueueAnswer>) -> String {
    queue.map_or_else(|| "-".into(), |queue| forecast(&queue.estimate, &queue.no_estimate))
}

/// In which time all ready tasks of a tube will have started; `-` if it has none.
pub fn drain(tube: &TubeAnswer) -> String {
    match tube.tasks.ready {
        0 => "-".into(),
        _ => forecast(&tube.drain, &tube.no_drain),
    }
}

/// How many estimates of a tube held.
pub fn held(counts: &CalibrationAnswer) -> String {
    let percent = 100.0 * counts.within_p90 as f64 / counts.checked.max(1) as f64;
    let noun = if counts.checked == 1 { "estimate" } else { "estimates" };
    format!("p90 held for {percent:.0} % of {} {noun}", grouped(counts.checked))
}

fn forecast(estimate: &Option<EstimateAnswer>, reason: &Option<NoEstimateAnswer>) -> String {
    match (estimate, reason) {
        (Some(EstimateAnswer { p50, p90, .. }), _) => {
            format!("{} (90 %: {})", units::in_words(*p50), units::in_words(*p90))
        }
        (None, Some(reason)) => format!("? ({})", reason.text),
        (None, None) => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_shown_with_both_times_or_the_reason() {
        let estimate = EstimateAnswer { ahead: 3, p50: 41.2, p90: 61.0, basis: "delay".into() };
        let reason = NoEstimateAnswer { name: "tube_paused".into(), text: "it is paused".into() };
        let known = QueueAnswer { estimate: Some(estimate), ..QueueAnswer::default() };
        let unknown = QueueAnswer { no_estimate: Some(reason), ..QueueAnswer::default() };
        assert_eq!(start(Some(&known)), "41 s (90 %: 1 min 1 s)");
        assert_eq!(start(Some(&unknown)), "? (it is paused)");
        assert_eq!(start(None), "-");
    }

    #[test]
    fn the_share_of_estimates_that_held_is_a_percentage() {
        let counts = |checked, within_p90| CalibrationAnswer { checked, within_p50: 0, within_p90 };
        assert_eq!(held(&counts(12_340, 11_229)), "p90 held for 91 % of 12,340 estimates");
        assert_eq!(held(&counts(1, 1)), "p90 held for 100 % of 1 estimate");
    }
}
