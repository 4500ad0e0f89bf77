//! Two server processes on one database; a proxy cuts the connections of one of them to it.

use fastrand::Rng;
use taskyard_conformance::random::new_seed;

use crate::key_storm::FaultyServers;
use crate::killed_servers::http;
use crate::live_servers::LiveServers;
use crate::process::Serving;

/// How many connections are cut in one fault.
const CUTS: usize = 8;

/// The servers of a storm.
pub struct CutServers<C> {
    /// They run until the end of the storm.
    _running: [Serving; 2],
    live: LiveServers,
    rng: Rng,
    cut: C,
}

impl<C: AsyncFn(usize)> CutServers<C> {
    /// These servers; `cut` cuts so many connections of one of them, and none afterwards.
    pub fn new(running: [Serving; 2], cut: C) -> Self {
        let live = LiveServers::new(running.iter().map(http).collect());
        CutServers { _running: running, live, rng: Rng::with_seed(new_seed()), cut }
    }
}

impl<C: AsyncFn(usize)> FaultyServers for CutServers<C> {
    fn parts(&mut self) -> (&LiveServers, &mut Rng) {
        (&self.live, &mut self.rng)
    }

    async fn fail(&mut self) {
        (self.cut)(CUTS).await;
    }
}
