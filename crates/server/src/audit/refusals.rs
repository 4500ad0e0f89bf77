//! Limits how many refused attempts of a user get an entry.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use taskyard_core::limits::{AUDIT_REFUSED_PER_MINUTE_MAX, USERS_MAX};

const MINUTE: Duration = Duration::from_secs(60);

/// The refused attempts of each user.
#[derive(Debug, Default)]
pub(super) struct RefusalLimit {
    users: HashMap<String, RefusedAttempts>,
}

#[derive(Debug)]
struct RefusedAttempts {
    /// When the current minute began.
    since: Instant,
    /// The entries in it.
    recorded: u64,
    /// Attempts without an entry since the last entry.
    omitted: u64,
}

impl RefusalLimit {
    /// Counts an attempt. If it gets an entry, this is how many before it got none.
    pub fn admit(&mut self, user: &str, now: Instant) -> Option<u64> {
        if self.users.len() >= USERS_MAX && !self.users.contains_key(user) {
            // Users that were removed from the list; those that are still there begin anew.
            self.users.clear();
        }
        let new = || RefusedAttempts { since: now, recorded: 0, omitted: 0 };
        let attempts = self.users.entry(user.to_owned()).or_insert_with(new);
        if now.duration_since(attempts.since) >= MINUTE {
            (attempts.since, attempts.recorded) = (now, 0);
        }
        if attempts.recorded >= AUDIT_REFUSED_PER_MINUTE_MAX {
            attempts.omitted += 1;
            return None;
        }
        attempts.recorded += 1;
        Some(std::mem::take(&mut attempts.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_its_own_limit_for_a_minute() {
        let (mut limit, now) = (RefusalLimit::default(), Instant::now());
        for _ in 0..AUDIT_REFUSED_PER_MINUTE_MAX {
            assert_eq!(limit.admit("ann", now), Some(0));
        }
        assert_eq!(limit.admit("ann", now), None);
        assert_eq!(limit.admit("ann", now), None);
        assert_eq!(limit.admit("bob", now), Some(0));
        assert_eq!(limit.admit("ann", now + MINUTE), Some(2), "the next entry counts them");
        assert_eq!(limit.admit("ann", now + MINUTE), Some(0));
    }

    #[test]
    fn the_number_of_users_is_limited() {
        let (mut limit, now) = (RefusalLimit::default(), Instant::now());
        for number in 0..=USERS_MAX {
            limit.admit(&number.to_string(), now);
            assert!(limit.users.len() <= USERS_MAX);
        }
    }
}
