//! Lists the tubes of a run; each shows one group of promises.

use fastrand::Rng;
use taskyard_core::{
    Command, Kind, RateLimit, RetryPolicy, SemaphoreChange, SemaphoreCommand, SemaphoreKey, Span,
    TubeName, TubeOptions,
};

/// What a tube is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TubeRole {
    /// Priorities, delays and times to live.
    Plain,
    /// Sub-queues.
    Subqueues,
    /// Unique keys.
    Keyed,
    /// A semaphore.
    Gated,
    /// Limited attempts and a retry policy.
    Retried,
    /// A rate limit.
    Rated,
    /// A small capacity.
    Small,
    /// Done tasks are kept with their results.
    Kept,
    /// The tasks of schedules.
    Scheduled,
    /// Empty until the servers are probed.
    Probed,
}

/// After how many failed deliveries a task of [`TubeRole::Retried`] is buried.
pub const ATTEMPTS_MAX: u32 = 3;

/// The rate limit of [`TubeRole::Rated`].
pub const RATE: RateLimit = RateLimit { count: 20, per: Span::from_secs(1), burst: 5 };

/// The capacity of [`TubeRole::Small`] when it is created.
pub const CAPACITY: u64 = 10;

/// How long [`TubeRole::Kept`] keeps done tasks.
pub const KEEP_DONE: Span = Span::from_secs(4);

/// What the names of tubes begin with that one client creates and drops.
pub const SCRATCH: &str = "scratch-";

/// Longer than any run after its faults: only a finish, an explicit lease or the end of a session ends a delivery.
const TTR: Span = Span::from_secs(7 * 24 * 3600);

impl TubeRole {
    /// The tubes that clients use.
    const DRAWN: [TubeRole; 6] = [
        TubeRole::Subqueues,
        TubeRole::Keyed,
        TubeRole::Gated,
        TubeRole::Retried,
        TubeRole::Rated,
        TubeRole::Small,
    ];

    /// Draws the tubes of a run: the plain one and a part of the others.
    pub fn draw(rng: &mut Rng) -> Vec<Self> {
        let drawn = TubeRole::DRAWN.into_iter().filter(|_| rng.bool());
        std::iter::once(TubeRole::Plain).chain(drawn).collect()
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            TubeRole::Plain => "plain",
            TubeRole::Subqueues => "subqueues",
            TubeRole::Keyed => "keyed",
            TubeRole::Gated => "gated",
            TubeRole::Retried => "retried",
            TubeRole::Rated => "rated",
            TubeRole::Small => "small",
            TubeRole::Kept => "kept",
            TubeRole::Scheduled => "scheduled",
            TubeRole::Probed => "probed",
        }
    }

    /// The tube.
    pub fn tube(self) -> TubeName {
        TubeName::new(self.name()).expect("the names above are good")
    }

    /// Whether a command is about this tube.
    pub fn is(self, tube: &TubeName) -> bool {
        tube.as_str() == self.name()
    }

    /// The commands that create it.
    pub fn create(self, semaphore_limit: i64) -> Vec<Command> {
        let kind = match self {
            TubeRole::Subqueues => Kind::UtubeTtl,
            TubeRole::Small => Kind::LimFifoTtl,
            _ => Kind::FifoTtl,
        };
        let plain = TubeOptions { ttr: Some(TTR), ..TubeOptions::new(kind) };
        let key = SemaphoreKey::new("gate").expect("the name is good");
        let retry = RetryPolicy { delay_max: Span::from_secs(10), ..RetryPolicy::DEFAULT };
        let options = match self {
            TubeRole::Gated => TubeOptions { semaphore: Some(key.clone()), ..plain },
            TubeRole::Retried => TubeOptions {
                attempts_max: Some(ATTEMPTS_MAX),
                retry: Some(Box::new(retry)),
                ..plain
            },
            TubeRole::Rated => TubeOptions { rate: Some(Box::new(RATE)), ..plain },
            TubeRole::Small => TubeOptions { capacity: Some(CAPACITY), ..plain },
            TubeRole::Kept => TubeOptions { keep_done: Some(KEEP_DONE), ..plain },
            _ => plain,
        };
        let create = Command::CreateTube { tube: self.tube(), options, if_not_exists: false };
        if self != TubeRole::Gated {
            return vec![create];
        }
        let change = Box::new(SemaphoreChange {
            active: Some(semaphore_limit),
            ..SemaphoreChange::default()
        });
        let configure = SemaphoreCommand::Configure { key, change, only_new: false };
        vec![Command::Semaphore(configure), create]
    }
}
