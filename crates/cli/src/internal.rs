//! Tubes of Taskyard itself, which lists of tubes leave out.

use clap::Args;
use taskyard_wire::http::TubeAnswer;

/// How the names of such tubes begin.
const PREFIX: &str = "taskyard.";

/// Whether they are shown.
#[derive(Clone, Copy, Debug, Args)]
pub struct InternalArgs {
    /// Show the tubes that Taskyard keeps for itself too: those whose names begin with taskyard.
    #[arg(long)]
    internal: bool,
}

impl InternalArgs {
    /// Leaves them out, unless they are wanted.
    pub fn hide(self, tubes: &mut Vec<TubeAnswer>) {
        if !self.internal {
            tubes.retain(|tube| !tube.name.starts_with(PREFIX));
        }
    }
}
