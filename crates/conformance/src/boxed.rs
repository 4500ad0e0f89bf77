//! Compiles each case once, in this crate, for a queue behind a pointer, instead of once in every test target.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use taskyard_core::{Command, Error, Execute, Reply, Span, Timestamp, TubeName};
use taskyard_store::Capabilities;

use crate::Harness;

/// The replies of a batch, or a restarted queue, later.
type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The methods of a queue that can be called through a pointer.
trait Queue: Send + Sync {
    fn execute(&self, commands: Vec<Command>) -> Later<'_, Vec<Result<Reply, Error>>>;
    fn capabilities(&self) -> Capabilities;
    fn now(&self) -> Timestamp;
    fn advance(&self, span: Span);
    fn advance_unticked(&self, span: Span);
    fn seed_ticks(&self, seed: u32) -> bool;
    fn take_failures(&self) -> Option<BTreeMap<TubeName, u64>>;
    fn restart(self: Box<Self>) -> Later<'static, Box<dyn Queue>>;
}

impl<H: Harness + 'static> Queue for H {
    fn execute(&self, commands: Vec<Command>) -> Later<'_, Vec<Result<Reply, Error>>> {
        Box::pin(Execute::execute(self, commands))
    }

    fn capabilities(&self) -> Capabilities {
        Harness::capabilities(self)
    }

    fn now(&self) -> Timestamp {
        Harness::now(self)
    }

    fn advance(&self, span: Span) {
        Harness::advance(self, span);
    }

    fn advance_unticked(&self, span: Span) {
        Harness::advance_unticked(self, span);
    }

    fn seed_ticks(&self, seed: u32) -> bool {
        Harness::seed_ticks(self, seed)
    }

    fn take_failures(&self) -> Option<BTreeMap<TubeName, u64>> {
        Harness::take_failures(self)
    }

    fn restart(self: Box<Self>) -> Later<'static, Box<dyn Queue>> {
        Box::pin(async move { Box::new(Harness::restart(*self).await) as Box<dyn Queue> })
    }
}

/// Any queue under test, behind a pointer.
pub struct BoxedHarness(Box<dyn Queue>);

impl BoxedHarness {
    /// Moves the queue behind a pointer.
    pub fn new(queue: impl Harness + 'static) -> Self {
        BoxedHarness(Box::new(queue))
    }
}

impl Execute for BoxedHarness {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Error>> {
        self.0.execute(commands).await
    }
}

impl Harness for BoxedHarness {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn advance(&self, span: Span) {
        self.0.advance(span);
    }

    fn advance_unticked(&self, span: Span) {
        self.0.advance_unticked(span);
    }

    fn seed_ticks(&self, seed: u32) -> bool {
        self.0.seed_ticks(seed)
    }

    fn take_failures(&self) -> Option<BTreeMap<TubeName, u64>> {
        self.0.take_failures()
    }

    async fn restart(self) -> Self {
        BoxedHarness(self.0.restart().await)
    }
}

/// A case that runs to its end when it is awaited.
pub type Case = Pin<Box<dyn Future<Output = ()>>>;

/// Defines, for each case of a table, a function that runs it on a [`BoxedHarness`]; the
/// name `cases` must be the module of the files.
macro_rules! boxed_cases {
    ($($file:ident: $($case:ident),+;)+) => {
        $(
            /// The cases of the file of this name.
            pub mod $file {
                $(
                    /// Runs the case of this name.
                    pub fn $case(queue: $crate::boxed::BoxedHarness) -> $crate::boxed::Case {
                        Box::pin(super::cases::$file::$case(queue))
                    }
                )+
            }
        )+
    };
}

use crate as cases;
crate::conformance_suite! { @table (boxed_cases) }

/// The cases of semaphores.
pub mod semaphores {
    use crate::semaphores as cases;
    crate::semaphore_suite! { @table (boxed_cases) }
}
