//! What may come of opening a damaged store.

use std::fs;
use std::path::{Path, PathBuf};

use taskyard_core::{Body, Error, NewTask, Reply};
use taskyard_store::{OpenError, Store};
use taskyard_store_sqlite::SqliteStore;

use crate::yard::{
    ask, block_on, close, content, copy, delete, fast_folder, must, open, put, put_now, try_open,
    tubes,
};

use super::sample::{IDS, Sample, describe_tubes};

/// One damage to one file of a sample; without bytes the file is removed.
pub struct Trial<'a> {
    sample: &'a Sample,
    file: &'a str,
    bytes: Option<Vec<u8>>,
}

/// What became of a damaged store.
enum Verdict {
    /// The damage does no harm: everything is there.
    Whole(Box<SqliteStore>),
    /// It was noticed.
    Noticed,
    /// The number of the format itself is damaged.
    TooNew,
}

impl<'a> Trial<'a> {
    pub fn new(
        sample: &'a Sample,
        file: &'a str,
        change: String,
        bytes: Option<Vec<u8>>,
    ) -> Trial<'a> {
        println!("{}: {file} {change}", sample.name);
        Trial { sample, file, bytes }
    }

    /// Opens the damaged store and judges what comes of it.
    pub fn run(&self) {
        let scratch = fast_folder();
        self.open(&self.damaged_copy(scratch.path()));
    }

    /// The same, and then goes on with what is there or what is left.
    pub fn run_further(&self) {
        let scratch = fast_folder();
        let folder = self.damaged_copy(&scratch.path().join("refused"));
        match self.open(&folder) {
            Verdict::Whole(store) => self.go_on(&folder, *store),
            Verdict::Noticed => self.accept_loss(&self.damaged_copy(&scratch.path().join("left"))),
            Verdict::TooNew => {}
        }
    }

    fn damaged_copy(&self, to: &Path) -> PathBuf {
        let folder = copy(self.sample.folder(), to.to_owned());
        self.damage(&folder);
        folder
    }

    pub fn damage(&self, folder: &Path) {
        let path = folder.join(self.file);
        match &self.bytes {
            Some(bytes) => fs::write(path, bytes).expect("the file can be written"),
            None => fs::remove_file(path).expect("the file can be removed"),
        }
    }

    fn open(&self, folder: &Path) -> Verdict {
        let store = match try_open(folder, false) {
            Ok(store) => store,
            Err(OpenError::Damaged { .. }) => return Verdict::Noticed,
            Err(OpenError::TooNew { .. }) if self.file == "taskyard.db" => return Verdict::TooNew,
            Err(other) => panic!("an unclear refusal: {other}"),
        };
        match content(&store, IDS) {
            Ok(found) => {
                assert!(found == self.sample.content, "other tasks than were put");
                assert_eq!(describe_tubes(&store), self.sample.tubes, "other tubes");
                Verdict::Whole(Box::new(store))
            }
            Err(Error::Store(what)) => {
                let clear =
                    ["damaged", "disk", "--accept-loss"].iter().any(|word| what.contains(word));
                assert!(clear, "unclear: {what}");
                Verdict::Noticed
            }
            Err(other) => panic!("an unclear failure: {other}"),
        }
    }

    /// A store that opened must go on: what is added later is not lost without a word either.
    fn go_on(&self, folder: &Path, store: SqliteStore) {
        let more = || NewTask::new(Body::new(&[7; 100]));
        let put = put("mail", (0..50).map(|_| more()).collect());
        let Ok(Reply::Put(placed)) = ask(&store, put) else { return };
        _ = block_on(store.close());
        drop(store);
        let Ok(store) = try_open(folder, false) else { return };
        let Ok(mut found) = content(&store, IDS) else { return };
        for placed in placed {
            let task = found.get(&("mail".to_owned(), placed.id.0));
            let body = task.and_then(|task| task.body.as_ref());
            assert_eq!(body, Some(&more().body), "task {} was acknowledged", placed.id);
        }
        found.retain(|key, _| self.sample.content.contains_key(key));
        assert!(found == self.sample.content, "other tasks after a put");
    }

    /// Who accepts a loss gets what is left: tasks that were put, with their own payloads.
    fn accept_loss(&self, folder: &Path) {
        let before: Vec<_> = ["taskyard.db", "taskyard.db-wal"]
            .map(|file| fs::read(folder.join(file)).unwrap_or_default())
            .into();
        let store = try_open(folder, true).expect("what is left can be opened");
        let found = content(&store, IDS).expect("what is left can be read");
        let numbers = tubes(&store);
        for ((tube, id), task) in &found {
            let number = numbers.iter().find(|t| t.name.as_str() == tube).map(|tube| tube.number);
            let key = (number.expect("a tube that is there"), *id);
            let payload = self.sample.payloads.get(&key);
            assert_eq!(task.body.as_ref(), Some(payload.expect("a task that was put")), "{key:?}");
        }
        for tube in &numbers {
            let (tube, new) = (tube.name.as_str(), NewTask::new(Body::new(b"new")));
            let ids = put_now(&store, tube, vec![new]);
            assert!(ids[0] >= IDS, "{tube}: {} may have been used before", ids[0]);
            must(&store, delete(tube, ids));
        }
        close(store);
        let again = content(&open(folder), IDS).expect("and read again");
        assert!(again == found, "what was saved stays");
        let kept = ["taskyard.db.damaged-1", "taskyard.db.damaged-1-wal"]
            .map(|file| fs::read(folder.join(file)).unwrap_or_default());
        assert!(kept.as_slice() == before, "the damaged files are kept as they were");
    }
}
