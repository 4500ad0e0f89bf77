//! Hides the tubes that Taskyard uses itself.

use clap::Args;
use taskyard_wire::http::TubeAnswer;

/// The prefix of their names.
const PREFIX: &str = "taskyard.";

/// Whether internal tubes are shown.
#[derive(Clone, Copy, Debug, Args)]
pub struct InternalArgs {
    /// Also show the internal tubes, whose names begin with "taskyard."
    #[arg(long)]
    internal: bool,
}

impl InternalArgs {
    /// Removes internal tubes, unless they are shown.
    pub fn hide(self, tubes: &mut Vec<TubeAnswer>) {
        if !self.internal {
            tubes.retain(|tube| !tube.name.starts_with(PREFIX));
        }
    }
}
