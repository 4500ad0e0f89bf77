//! Lists the faults that are planted to show that the judges find them. `planted_store` plants those between an engine and its store.

use crate::plan::Scenario;

/// A fault in the product that a judge must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A delivery gets the number of an earlier one.
    ReuseLease,
    /// Waiting takes do not learn of ready tasks.
    LoseWakeup,
    /// What is due is not processed.
    ForgetTick,
    /// Two puts of a batch get each other's reply.
    SwapReplies,
    /// A put is acknowledged and not executed.
    DropPut,
    /// An ack is acknowledged and not executed.
    DropAck,
    /// An ack is accepted whatever its lease is.
    AcceptStaleAck,
    /// The semaphore allows one more than its limit.
    ExceedSemaphore,
    /// The tasks of a schedule are added twice.
    RepeatFire,
    /// The tasks of a schedule are not added.
    MissFire,
    /// Keys are not stored.
    DropKey,
    /// Keys are free as soon as their tasks have ended.
    ForgetUniqueFor,
    /// Each task has a sub-queue of its own.
    SplitSubqueue,
    /// Priorities are not stored.
    DropPriority,
    /// Delays are halved.
    HalveDelay,
    /// A lease ends before the time that the client knows.
    ShortenLease,
    /// Extensions of leases are acknowledged and not executed.
    DropTouch,
    /// Failed deliveries are not counted.
    ForgetAttempt,
    /// A buried task is released instead.
    ReleaseBuried,
    /// The rate limit is not stored.
    DropRate,
    /// A put is executed again when its reply was lost.
    RepeatPut,
    /// Servers that miss heartbeats are never declared dead.
    BelieveOldHeartbeat,
    /// Servers are declared dead although they send heartbeats.
    ImpatientPresence,
    /// Deliveries to sessions stay although their replies were lost.
    KeepLostDeliveries,
    /// A crash loses the latest batch, which was acknowledged.
    CrashLosesBatch,
    /// The embedded store does not sync its journal.
    SkipJournalSync,
    /// SQLite does not sync its log.
    SkipLogSync,
    /// The embedded store does not wait for the syncs of a slow disk.
    SkipSlowSyncs,
    /// A server that is stopped does not wait for what is under way.
    HastyServerStop,
    /// A server that is stopped does not end.
    EndlessServerStop,
    /// The names of new files are not synced.
    SkipFolderSync,
    /// The disk swaps the latest write of the journal with the sync after it.
    SwapWrites,
    /// The embedded store does not read the last batch of its journal when it is opened.
    DropLastFrame,
    /// The embedded store does not notice that a sync failed.
    IgnoreSyncErrors,
    /// A pause is acknowledged and not executed.
    DropPause,
    /// Waiting takes do not learn that their tube was resumed.
    LoseResume,
    /// The capacity of a tube is not stored.
    IgnoreCapacity,
    /// A change of the capacity is acknowledged and not executed.
    ForgetAlter,
    /// Results of acked tasks are not stored.
    DropResult,
    /// Done tasks are kept for half of their time.
    ForgetDone,
    /// A kick of chosen tasks is acknowledged and not executed.
    DropKick,
    /// A drop of a tube is acknowledged and not executed.
    KeepDroppedTube,
    /// Schedules do not follow daylight saving time.
    IgnoreDaylight,
    /// Two answers of a session have each other's number.
    SwapAnswers,
    /// A session does not send an answer.
    LoseAnswer,
    /// A session keeps its tasks although its connection was cut.
    KeepCutSessions,
    /// A session over HTTP answers a request with its previous answer.
    RepeatHttpAnswer,
    /// A client repeats a put without a key after its answer was lost.
    RepeatUnkeyedPut,
    /// A worker does not extend its leases, and believes that it did.
    DropHeartbeats,
    /// A worker believes that it extended a lease although that failed.
    BelieveLostLease,
    /// A worker acks tasks that failed.
    HideFailures,
    /// A worker releases a task that is done, and acks it after that.
    ReleaseBeforeAck,
    /// A worker believes that it acked a task, and did not.
    DropWorkerAck,
    /// A worker that is stopped does not wait for its handlers.
    HastyStop,
    /// A worker ignores the plans of the manager.
    IgnorePlans,
    /// The consumers of a semaphore are not asked to release.
    LosePreemption,
    /// A task is shown behind half of the tasks that go first.
    HalvePositions,
    /// Tasks are shown to start after half of the time.
    HalveEstimates,
    /// Tasks are shown to start after twice the time. Only the shares of many runs together show it, so it is in no list.
    DoubleEstimates,
    /// Deliveries show a part of the payload.
    CutPayload,
    /// A session that its client leaves goes on.
    KeepLeftSession,
    /// There is more than one leader task, so that several managers lead.
    SplitLead,
    /// A take that finds tasks panics.
    PanicAtTake,
    /// A scheduler that does not lead any more is believed.
    IgnoreLead,
    /// A new lead has the number of the last one, so that runs have the names of earlier ones.
    ReuseLead,
    /// Backends that send no heartbeats count as alive.
    BelieveDeadBackends,
    /// The end of a run does not remove its allocation.
    KeepAllocation,
    /// Runs that backends report after a data loss of Redis are forgotten.
    ForgetReports,
    /// Tasks start after a data loss before all backends have reported.
    StartUnsettled,
    /// It is not stored that a client has seen output.
    ForgetSeen,
    /// A task whose backend is gone is not queued again.
    LoseRequeued,
    /// A Redis that has lost its latest data is believed.
    BelieveOldData,
    /// A gateway sends the last frame of a task twice.
    RepeatLastFrame,
}

impl PlantedFault {
    /// Those that single runs find, with the scenarios in which they are looked for.
    pub const ALL: [(PlantedFault, Scenario); 78] = [
        (PlantedFault::ReuseLease, Scenario::Memory),
        (PlantedFault::LoseWakeup, Scenario::Memory),
        (PlantedFault::ForgetTick, Scenario::Memory),
        (PlantedFault::SwapReplies, Scenario::Memory),
        (PlantedFault::DropPut, Scenario::Shared),
        (PlantedFault::DropAck, Scenario::Shared),
        (PlantedFault::AcceptStaleAck, Scenario::Shared),
        (PlantedFault::ExceedSemaphore, Scenario::Memory),
        (PlantedFault::RepeatFire, Scenario::Memory),
        (PlantedFault::MissFire, Scenario::Shared),
        (PlantedFault::DropKey, Scenario::Memory),
        (PlantedFault::ForgetUniqueFor, Scenario::Memory),
        (PlantedFault::SplitSubqueue, Scenario::Shared),
        (PlantedFault::DropPriority, Scenario::Memory),
        (PlantedFault::HalveDelay, Scenario::Memory),
        (PlantedFault::ShortenLease, Scenario::Shared),
        (PlantedFault::DropTouch, Scenario::Memory),
        (PlantedFault::ForgetAttempt, Scenario::Memory),
        (PlantedFault::ReleaseBuried, Scenario::Memory),
        (PlantedFault::DropRate, Scenario::Memory),
        (PlantedFault::RepeatPut, Scenario::Shared),
        (PlantedFault::BelieveOldHeartbeat, Scenario::Shared),
        (PlantedFault::ImpatientPresence, Scenario::Shared),
        (PlantedFault::KeepLostDeliveries, Scenario::Shared),
        (PlantedFault::CrashLosesBatch, Scenario::Shared),
        (PlantedFault::SkipJournalSync, Scenario::Embedded),
        (PlantedFault::SkipLogSync, Scenario::Embedded),
        (PlantedFault::SkipSlowSyncs, Scenario::Embedded),
        (PlantedFault::HastyServerStop, Scenario::Shared),
        (PlantedFault::EndlessServerStop, Scenario::Shared),
        (PlantedFault::SkipFolderSync, Scenario::Embedded),
        (PlantedFault::IgnoreSyncErrors, Scenario::Embedded),
        (PlantedFault::SwapWrites, Scenario::Embedded),
        (PlantedFault::DropLastFrame, Scenario::Embedded),
        (PlantedFault::CrashLosesBatch, Scenario::Crashes),
        (PlantedFault::SkipJournalSync, Scenario::Crashes),
        (PlantedFault::SkipLogSync, Scenario::Crashes),
        (PlantedFault::SkipFolderSync, Scenario::Crashes),
        (PlantedFault::SwapWrites, Scenario::Crashes),
        (PlantedFault::DropLastFrame, Scenario::Crashes),
        (PlantedFault::CutPayload, Scenario::Memory),
        (PlantedFault::KeepLeftSession, Scenario::Shared),
        (PlantedFault::PanicAtTake, Scenario::Memory),
        (PlantedFault::DropPause, Scenario::Memory),
        (PlantedFault::LoseResume, Scenario::Memory),
        (PlantedFault::IgnoreCapacity, Scenario::Shared),
        (PlantedFault::ForgetAlter, Scenario::Memory),
        (PlantedFault::DropResult, Scenario::Embedded),
        (PlantedFault::ForgetDone, Scenario::Memory),
        (PlantedFault::DropKick, Scenario::Shared),
        (PlantedFault::KeepDroppedTube, Scenario::Shared),
        (PlantedFault::IgnoreDaylight, Scenario::Memory),
        (PlantedFault::SwapAnswers, Scenario::Network),
        (PlantedFault::LoseAnswer, Scenario::Network),
        (PlantedFault::KeepCutSessions, Scenario::Network),
        (PlantedFault::RepeatHttpAnswer, Scenario::Network),
        (PlantedFault::RepeatUnkeyedPut, Scenario::Network),
        (PlantedFault::DropHeartbeats, Scenario::Workers),
        (PlantedFault::BelieveLostLease, Scenario::Workers),
        (PlantedFault::HideFailures, Scenario::Workers),
        (PlantedFault::ReleaseBeforeAck, Scenario::Workers),
        (PlantedFault::DropWorkerAck, Scenario::Workers),
        (PlantedFault::HastyStop, Scenario::Workers),
        (PlantedFault::IgnorePlans, Scenario::Workers),
        (PlantedFault::LosePreemption, Scenario::Workers),
        (PlantedFault::SplitLead, Scenario::Workers),
        (PlantedFault::HalvePositions, Scenario::Estimates),
        (PlantedFault::HalveEstimates, Scenario::Estimates),
        (PlantedFault::IgnoreLead, Scenario::Pool),
        (PlantedFault::ReuseLead, Scenario::Pool),
        (PlantedFault::BelieveDeadBackends, Scenario::Pool),
        (PlantedFault::KeepAllocation, Scenario::Pool),
        (PlantedFault::ForgetReports, Scenario::Pool),
        (PlantedFault::StartUnsettled, Scenario::Pool),
        (PlantedFault::ForgetSeen, Scenario::Pool),
        (PlantedFault::LoseRequeued, Scenario::Pool),
        (PlantedFault::BelieveOldData, Scenario::Pool),
        (PlantedFault::RepeatLastFrame, Scenario::Pool),
    ];

    /// The fault of this name.
    pub fn from_name(name: &str) -> Option<(Self, Scenario)> {
        PlantedFault::ALL.into_iter().find(|(fault, _)| format!("{fault:?}") == name)
    }
}
