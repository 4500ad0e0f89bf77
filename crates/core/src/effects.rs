//! What a batch of commands changed that others may be waiting for.

use std::collections::BTreeSet;

use crate::semaphore::SemaphoreKey;
use crate::time::Timestamp;
use crate::tube::TubeName;

/// What others may be waiting for. Consumers and producers are woken from this alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Tubes in which tasks became takeable, and how many are takeable now.
    pub ready: Vec<(TubeName, u64)>,
    /// Full tubes that have room again, and how much.
    pub room: Vec<(TubeName, u64)>,
    /// Of which semaphores events became due: those who wait for them may fetch them.
    pub events: News,
    /// When time alone next changes something; a tick is wanted then.
    pub next_wakeup: Option<Timestamp>,
}

/// Of which semaphores there may be new events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum News {
    /// There are none.
    #[default]
    Nothing,
    /// Of these.
    Of(BTreeSet<SemaphoreKey>),
    /// Perhaps of any.
    All,
}

impl News {
    /// Of one semaphore.
    pub fn of(key: SemaphoreKey) -> News {
        News::Of(BTreeSet::from([key]))
    }

    /// Takes one in.
    pub fn add_key(&mut self, key: &SemaphoreKey) {
        match self {
            News::Nothing => *self = News::of(key.clone()),
            News::Of(keys) if !keys.contains(key) => _ = keys.insert(key.clone()),
            News::Of(_) | News::All => {}
        }
    }

    /// Whether there may be any.
    pub fn are_there(&self) -> bool {
        *self != News::Nothing
    }

    /// Whether somebody who waits for events of this semaphore, or of any, may find some.
    pub fn concern(&self, wanted: Option<&SemaphoreKey>) -> bool {
        match (self, wanted) {
            (News::Nothing, _) => false,
            (News::Of(keys), Some(wanted)) => keys.contains(wanted),
            (News::Of(_), None) | (News::All, _) => true,
        }
    }

    /// Takes others in.
    pub fn add(&mut self, more: News) {
        match (&mut *self, more) {
            (_, News::Nothing) | (News::All, _) => {}
            (News::Of(keys), News::Of(more)) => keys.extend(more),
            (_, more) => *self = more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_add_up() {
        let key = |text: &str| SemaphoreKey::new(text).unwrap();
        let mut news = News::default();
        assert!(!news.are_there() && !news.concern(None));
        news.add(News::of(key("a")));
        news.add(News::Nothing);
        assert!(news.concern(Some(&key("a"))) && news.concern(None));
        assert!(!news.concern(Some(&key("b"))));
        news.add(News::of(key("b")));
        assert!(news.concern(Some(&key("a"))) && news.concern(Some(&key("b"))));
        news.add(News::All);
        news.add(News::of(key("c")));
        assert_eq!(news, News::All);
    }
}
