//! Counts how often faults happened and what they did. A fault without an effect shows a gap of the simulator, not a strength of the
//! product.
//!
//! A run uses one thread, so the counts of a run are those of its thread.

use std::cell::RefCell;
use std::fmt;

/// A fault by its name.
#[expect(missing_docs, reason = "the name says it, and `EFFECTS` what it does")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultName {
    CrashServer,
    StopServer,
    FreezeServer,
    LoseReplies,
    RefuseServer,
    LoseNotifications,
    CrashDatabase,
    SlowDatabase,
    StepClock,
    LosePower,
    DiskErrors,
    FullDisk,
    ReadOnlyDisk,
    SlowDisk,
    CutConnections,
    SilenceConnections,
    SlowConnections,
    RefuseConnections,
    CrashWorker,
    StopWorker,
    FreezeWorker,
    CrashRedis,
    FlushRedis,
    FreezeRedis,
    FailOver,
    LoseRedisReplies,
    LoseMessages,
    SlowRedis,
    CutRedis,
    CutBackends,
    SilenceBackends,
    RefuseBackends,
    KillProcess,
    StallProcess,
    StopProcess,
}

/// The faults by number, and what is counted as an effect of each.
const EFFECTS: [(FaultName, &str); 35] = [
    (FaultName::CrashServer, "calls under way"),
    (FaultName::StopServer, "calls under way"),
    (FaultName::FreezeServer, "steps held back"),
    (FaultName::LoseReplies, "replies lost"),
    (FaultName::RefuseServer, "batches refused"),
    (FaultName::LoseNotifications, "notifications lost"),
    (FaultName::CrashDatabase, "batches refused or without a reply"),
    (FaultName::SlowDatabase, "batches delayed"),
    (FaultName::StepClock, "calls at another time"),
    (FaultName::LosePower, "pages lost or torn"),
    (FaultName::DiskErrors, "operations failed"),
    (FaultName::FullDisk, "writes refused"),
    (FaultName::ReadOnlyDisk, "changes refused"),
    (FaultName::SlowDisk, "waits for the disk"),
    (FaultName::CutConnections, "connections cut"),
    (FaultName::SilenceConnections, "writes lost"),
    (FaultName::SlowConnections, "writes delayed"),
    (FaultName::RefuseConnections, "connections refused"),
    (FaultName::CrashWorker, "processes killed"),
    (FaultName::StopWorker, "processes stopped"),
    (FaultName::FreezeWorker, "steps held back"),
    (FaultName::CrashRedis, "connections closed"),
    (FaultName::FlushRedis, "keys removed"),
    (FaultName::FreezeRedis, "commands held back"),
    (FaultName::FailOver, "connections closed"),
    (FaultName::LoseRedisReplies, "replies lost"),
    (FaultName::LoseMessages, "messages lost"),
    (FaultName::SlowRedis, "commands delayed"),
    (FaultName::CutRedis, "connections cut"),
    (FaultName::CutBackends, "connections cut"),
    (FaultName::SilenceBackends, "writes lost"),
    (FaultName::RefuseBackends, "connections refused"),
    (FaultName::KillProcess, "processes killed"),
    (FaultName::StallProcess, "reads held back"),
    (FaultName::StopProcess, "processes stopped"),
];

/// How often each fault happened and had an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultCounts {
    begun: [u64; EFFECTS.len()],
    effects: [u64; EFFECTS.len()],
}

thread_local! {
    static COUNTS: RefCell<FaultCounts> = RefCell::default();
}

/// Counts a fault that begins.
pub(crate) fn count_fault(fault: FaultName) {
    COUNTS.with_borrow_mut(|counts| counts.begun[fault as usize] += 1);
}

/// Counts effects of a fault.
pub(crate) fn count_effects(fault: FaultName, count: usize) {
    COUNTS.with_borrow_mut(|counts| counts.effects[fault as usize] += count as u64);
}

/// Counts one effect of a fault.
pub(crate) fn count_effect(fault: FaultName) {
    count_effects(fault, 1);
}

/// The counts of this thread since the last call.
pub(crate) fn take_counts() -> FaultCounts {
    COUNTS.take()
}

impl Default for FaultCounts {
    fn default() -> Self {
        FaultCounts { begun: [0; EFFECTS.len()], effects: [0; EFFECTS.len()] }
    }
}

impl FaultCounts {
    /// How many faults happened.
    pub fn faults(&self) -> u64 {
        self.begun.iter().sum()
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &FaultCounts) {
        let begun = self.begun.iter_mut().zip(&other.begun);
        for (sum, count) in begun.chain(self.effects.iter_mut().zip(&other.effects)) {
            *sum += count;
        }
    }

    /// The faults that had no effect, also those that never happened.
    pub fn without_effect(&self) -> Vec<FaultName> {
        let all = EFFECTS.iter().filter(|(fault, _)| self.effects[*fault as usize] == 0);
        all.map(|(fault, _)| *fault).collect()
    }
}

/// A table of the faults that happened.
impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (fault, effect) in EFFECTS {
            let (begun, effects) = (self.begun[fault as usize], self.effects[fault as usize]);
            if begun > 0 {
                writeln!(f, "  {:<20}{begun:>9}{effects:>12} {effect}", format!("{fault:?}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_numbers() {
        assert!(EFFECTS.iter().enumerate().all(|(index, (fault, _))| *fault as usize == index));
    }

    #[test]
    fn faults_and_effects_are_counted_and_shown() {
        assert_eq!(take_counts(), FaultCounts::default());
        count_fault(FaultName::SlowDisk);
        count_effects(FaultName::SlowDisk, 12);
        let mut counts = take_counts();
        counts.add(&counts.clone());
        assert_eq!(counts.faults(), 2);
        assert_eq!(counts.without_effect().len(), EFFECTS.len() - 1);
        assert_eq!(
            counts.to_string(),
            format!("  {:<20}{:>9}{:>12} waits for the disk\n", "SlowDisk", 2, 24)
        );
        assert_eq!(take_counts(), FaultCounts::default());
    }
}
