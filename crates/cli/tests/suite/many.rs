//! A folder with more tasks than come at once.

use std::path::Path;

use taskyard_conformance::block_on;
use taskyard_core::{Body, Command, Kind, NewTask, Span, Timestamp, TubeName, TubeOptions};
use taskyard_store::OpenOptions;
use taskyard_stores::open;

pub const TASKS: usize = 40_000;

/// A folder with a tube of many tasks; answers its URL.
pub fn source(folder: &Path) -> String {
    let url = format!("sqlite:{}", folder.display());
    let store = open(&url, &OpenOptions::default()).expect("it opens");
    let tube = TubeName::new("mail").expect("a name");
    let options = TubeOptions::new(Kind::FifoTtl);
    let mut commands =
        vec![Command::CreateTube { tube: tube.clone(), options, if_not_exists: false }];
    for batch in 0..TASKS / 5_000 {
        // A string of six bytes.
        let text = |number: usize| format!("{batch:02}{number:04}");
        let body = |number| Body::new(&[&[0xa6], text(number).as_bytes()].concat());
        let tasks = (0..5_000).map(|number| NewTask::new(body(number))).collect();
        commands.push(Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO });
    }
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let replies = block_on(store.execute(now, commands)).replies;
    assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    block_on(store.close()).expect("it closes");
    url
}
