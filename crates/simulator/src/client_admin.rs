//! Alters, pauses and drops tubes and chooses tasks from lists, as operators do.

use fastrand::Rng;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, Kind, List, ListOrder, NewTask, Reply, Span, State,
    StateSet, Take, TaskId, TubeChange, TubeName, TubeOptions,
};

use crate::client::Client;
use crate::history::{CallReply, OperationNumber};
use crate::operations::payload;
use crate::tubes::{SCRATCH, TubeRole};

/// The most tasks that are listed.
pub const LISTED_MAX: usize = 1_000;
/// The most tasks that are chosen from a list.
const CHOSEN_MAX: usize = 3;

impl Client {
    /// Pauses, resumes or changes a tube.
    pub(super) async fn alter(
        &mut self,
        operation: OperationNumber,
        role: TubeRole,
        rng: &mut Rng,
    ) {
        let none = TubeChange::default();
        let change = match rng.u8(0..4) {
            0 => TubeChange { paused: Some(true), ..none },
            1 | 2 => TubeChange { paused: Some(false), ..none },
            _ if role == TubeRole::Small => {
                TubeChange { capacity: Some(Some(rng.u64(1..=20))), ..none }
            }
            _ => TubeChange { pri: Some(rng.u64(0..4)), ..none },
        };
        self.call(operation, Command::AlterTube { tube: role.tube(), change }).await;
    }

    /// Lists tasks of one state, and changes some of them, as the actions on a filter do.
    pub(super) async fn choose(
        &mut self,
        operation: OperationNumber,
        role: TubeRole,
        rng: &mut Rng,
    ) {
        let tube = role.tube();
        if rng.u8(0..16) == 0 {
            self.call(operation, Command::ReleaseAll { tube }).await;
            return;
        }
        let states = [State::Buried, State::Buried, State::Taken, State::Ready, State::Delayed];
        let state = states[rng.usize(0..states.len())];
        let mut ids = self.list(operation, &tube, state).await;
        rng.shuffle(&mut ids);
        ids.truncate(rng.usize(1..=CHOSEN_MAX));
        if ids.is_empty() {
            return;
        }
        let finish = |ids: Vec<TaskId>, finish: Finish| {
            let item = |id| FinishItem { id, holder: Holder::Any, finish: finish.clone() };
            let items = ids.into_iter().map(item).collect();
            Command::Finish { tube: tube.clone(), items, show: false }
        };
        let command = match (state, rng.u8(0..4)) {
            (_, 0) => Command::Delete { tube: tube.clone(), ids, show: false },
            (State::Buried, _) => {
                Command::KickTasks { tube: tube.clone(), ids, reset_attempts: rng.bool() }
            }
            (State::Taken, _) => {
                finish(ids, Finish::Release { delay: Span::ZERO, counted: rng.bool() })
            }
            _ => finish(ids, Finish::Bury),
        };
        self.call(operation, command).await;
        // Those that were kicked are listed no more, and those that were buried are.
        self.list(operation, &tube, State::Buried).await;
    }

    /// The tasks of a tube in one state.
    async fn list(
        &mut self,
        operation: OperationNumber,
        tube: &TubeName,
        state: State,
    ) -> Vec<TaskId> {
        let order = ListOrder::Id { states: StateSet::EMPTY.with(state), after: None };
        let list = List { tube: tube.clone(), order, limit: LISTED_MAX, key: None };
        let ids = |reply: &CallReply| match reply {
            CallReply::Replied(Reply::Listed(tasks)) => tasks.iter().map(|task| task.id).collect(),
            _ => Vec::new(),
        };
        let world = self.world.clone();
        world.read_call(operation, self.server, Command::List(list), None, ids).await
    }

    /// Shows the tasks that it acked in the tube that keeps them.
    pub(super) async fn show_done(&mut self, operation: OperationNumber) {
        let kept = self.old.iter().filter(|task| TubeRole::Kept.is(&task.tube));
        let ids: Vec<TaskId> = kept.map(|task| task.id).collect();
        if !ids.is_empty() {
            self.call(operation, Command::Peek { tube: TubeRole::Kept.tube(), ids }).await;
        }
    }

    /// Creates a tube, fills it, drops it, and tries to use it after that. Its name is never used again.
    pub(super) async fn use_scratch_tube(&mut self, operation: OperationNumber, rng: &mut Rng) {
        let name = format!("{SCRATCH}{}-{}", operation.0, operation.1);
        let tube = TubeName::new(&name).expect("the name is good");
        let create = || Command::CreateTube {
            tube: tube.clone(),
            options: TubeOptions::new(Kind::FifoTtl),
            if_not_exists: true,
        };
        let put = |index| {
            let body = Body::new(&payload(operation, index).to_be_bytes());
            let tasks = vec![NewTask::new(body)];
            Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO }
        };
        self.call(operation, create()).await;
        self.call(operation, put(0)).await;
        if rng.bool() {
            // While a task is taken, the tube cannot be dropped.
            let (count, lease, wait) = (1, Some(Span::from_secs(5)), Span::ZERO);
            let (session, worker) = (None, None);
            let take = Take { tube: tube.clone(), count, session, lease, worker, wait };
            self.call(operation, Command::Take(take)).await;
        }
        self.call(operation, Command::DropTube { tube: tube.clone() }).await;
        if rng.bool() {
            self.call(operation, put(1)).await;
        } else {
            self.call(operation, create()).await;
            self.call(operation, Command::Tubes { tube: Some(tube.clone()) }).await;
        }
        self.call(operation, Command::DropTube { tube }).await;
    }
}
