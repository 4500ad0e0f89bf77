//! Decides which groups the next claim covers, and when it is due.
//!
//! A claim of all groups costs as much as there are groups with planned tasks. So the groups that such a claim leaves
//! waiting are kept in order, and as tasks end only the first of them are claimed.

use std::collections::HashSet;
use std::time::Duration;

use taskyard_core::Timestamp;
use tokio::time::Instant;

use super::capacity::Capacity;
use super::waiting_groups::{FinishedClaim, WaitingGroup, WaitingGroups};
use crate::clock::DatabaseClock;

/// While groups are known to wait, the next claim of all groups is delayed by this many times the duration of the last.
const SCAN_PAUSE: u32 = 4;

/// Which groups the next claim covers, and when it is due.
pub(super) struct ClaimPlanner {
    /// Groups whose tasks could start if there were capacity.
    pub waiting: WaitingGroups,
    /// When the next task is planned.
    pub next_plan: Option<Timestamp>,
    /// How many more rows of a group to read, because many have expired.
    pub extra_rows: usize,
    /// Whether all groups may have tasks to claim.
    all_requested: bool,
    /// The keys of the groups that may have tasks to claim.
    requested: HashSet<String>,
    /// When a plan or the end of a pause requires a claim of all groups. A claim of some groups does not delay it.
    scan_due: Option<Timestamp>,
    /// Whether the claim in progress covers all groups.
    covers_all: bool,
    /// When all groups were last claimed, and until when that is not repeated while groups are known to wait.
    scanned_at: Instant,
    next_scan_at: Instant,
}

impl ClaimPlanner {
    /// A planner that starts with a claim of all groups.
    pub fn new(now: Instant) -> Self {
        ClaimPlanner {
            waiting: WaitingGroups::default(),
            next_plan: None,
            extra_rows: 0,
            all_requested: true,
            requested: HashSet::new(),
            scan_due: None,
            covers_all: true,
            scanned_at: now,
            next_scan_at: now,
        }
    }

    /// Any group may have tasks to claim.
    pub fn request_all(&mut self) {
        self.all_requested = true;
    }

    /// This group may have tasks to claim.
    pub fn request_group(&mut self, key: &str) {
        self.requested.insert(key.to_owned());
    }

    /// Requests all groups if a plan or the end of a pause is due.
    pub fn request_due(&mut self, now: Timestamp) {
        if self.scan_due.is_some_and(|at| at <= now) {
            self.all_requested = true;
        }
    }

    /// Requests all groups if only that finds the next one, or if groups with locked rows were left out one poll
    /// interval ago.
    pub fn request_missing(&mut self, capacity: Capacity, now: Instant, poll: Duration) {
        if self.waiting.is_drained(capacity)
            || (self.waiting.has_dropped() && now >= self.scanned_at + poll)
        {
            self.all_requested = true;
        }
    }

    /// Whether a claim for this capacity may find tasks now.
    pub fn is_useful(&self, capacity: Capacity, now: Instant) -> bool {
        let drained = self.waiting.is_drained(capacity);
        let some = !self.requested.is_empty() || self.waiting.has(capacity);
        some || ((self.all_requested || drained) && self.may_scan(now))
    }

    /// Whether all groups may be claimed now. While some are known to wait, only a part of the time is spent on that.
    fn may_scan(&self, now: Instant) -> bool {
        !self.waiting.is_any() || now >= self.next_scan_at
    }

    /// Starts a claim; returns the keys of the groups that it covers, or `None` for all.
    pub fn start(&mut self, capacity: Capacity, now: Instant) -> Option<HashSet<String>> {
        self.covers_all = self.all_requested && self.may_scan(now);
        let mut keys = std::mem::take(&mut self.requested);
        if self.covers_all {
            self.all_requested = false;
            return None;
        }
        keys.iter().for_each(|key| self.waiting.remove(key));
        keys.extend(self.waiting.take(capacity));
        Some(keys)
    }

    /// A claim has been answered after this time.
    pub fn note_scan(&mut self, took: Duration) {
        if self.covers_all {
            self.scanned_at = Instant::now();
            self.next_scan_at = self.scanned_at + took * SCAN_PAUSE;
        }
    }

    /// Notes the next plan and the next end of a pause.
    pub fn set_next(&mut self, next_plan: Option<Timestamp>, pause_end: Option<Timestamp>) {
        self.next_plan = next_plan;
        let before = self.scan_due.filter(|_| !self.covers_all);
        self.scan_due = [before, next_plan, pause_end].into_iter().flatten().min();
    }

    /// Finishes a claim with the groups that it left waiting.
    pub fn finish(&mut self, groups: Vec<WaitingGroup>, capacity: Capacity, found: bool) {
        self.waiting.add(groups, FinishedClaim { all: self.covers_all, capacity, found });
        if self.extra_rows > 0 {
            self.all_requested = true;
        }
    }

    /// When a claim of all groups is due: at the next plan or end of a pause, unless it is delayed.
    pub fn wake_at(
        &self,
        clock: &DatabaseClock,
        pause_end: Option<Timestamp>,
        now: Instant,
    ) -> Option<Instant> {
        if !self.may_scan(now) {
            return Some(self.next_scan_at);
        }
        let times = [self.next_plan, self.scan_due, pause_end].into_iter().flatten();
        times.map(|at| clock.instant_of(at)).min()
    }
}
