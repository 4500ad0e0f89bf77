//! Opens a damaged store and checks that the result is allowed.

use std::fs;
use std::path::{Path, PathBuf};

use taskyard_core::{Body, Error, NewTask, Reply};
use taskyard_store::{OpenError, Store};
use taskyard_store_sqlite::SqliteStore;

use crate::fixture::{
    ask, block_on, close, content, copy, delete, fast_folder, must, open, put, put_now, try_open,
    tubes,
};

use super::sample::{IDS, Sample, describe_tubes};

/// A damage to one file of a sample; without bytes the file is removed.
pub struct Trial<'a> {
    sample: &'a Sample,
    file: &'a str,
    bytes: Option<Vec<u8>>,
}

/// The result of opening a damaged store.
enum OpenOutcome {
    /// The damage has no effect: everything is there.
    Whole(Box<SqliteStore>),
    /// The damage was detected.
    Detected,
    /// The format number is damaged.
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

    /// Opens the damaged store and checks the result.
    pub fn run(&self) {
        let scratch = fast_folder();
        self.open(&self.damaged_copy(scratch.path()));
    }

    /// The same, and then uses the store or the intact data.
    pub fn run_further(&self) {
        let scratch = fast_folder();
        let folder = self.damaged_copy(&scratch.path().join("refused"));
        match self.open(&folder) {
            OpenOutcome::Whole(store) => self.use_store(&folder, *store),
            OpenOutcome::Detected => {
                self.accept_loss(&self.damaged_copy(&scratch.path().join("left")))
            }
            OpenOutcome::TooNew => {}
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

    fn open(&self, folder: &Path) -> OpenOutcome {
        let store = match try_open(folder, false) {
            Ok(store) => store,
            Err(OpenError::Damaged { .. }) => return OpenOutcome::Detected,
            Err(OpenError::TooNew { .. }) if self.file == "taskyard.db" => {
                return OpenOutcome::TooNew;
            }
            Err(other) => panic!("an unexpected refusal: {other}"),
        };
        match content(&store, IDS) {
            Ok(found) => {
                assert!(found == self.sample.content, "other tasks than were put");
                assert_eq!(describe_tubes(&store), self.sample.tubes, "other tubes");
                OpenOutcome::Whole(Box::new(store))
            }
            Err(Error::Store(what)) => {
                let clear =
                    ["damaged", "disk", "--accept-loss"].iter().any(|word| what.contains(word));
                assert!(clear, "unexpected message: {what}");
                OpenOutcome::Detected
            }
            Err(other) => panic!("an unexpected failure: {other}"),
        }
    }

    /// A store that opened must continue to work: later tasks are not lost silently either.
    fn use_store(&self, folder: &Path, store: SqliteStore) {
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

    /// `--accept-loss` opens the intact data: tasks that were put, with their own payloads.
    fn accept_loss(&self, folder: &Path) {
        let before: Vec<_> = ["taskyard.db", "taskyard.db-wal"]
            .map(|file| fs::read(folder.join(file)).unwrap_or_default())
            .into();
        let store = try_open(folder, true).expect("the intact data can be opened");
        let found = content(&store, IDS).expect("the intact data can be read");
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
        assert!(again == found, "the saved data is unchanged");
        let kept = ["taskyard.db.damaged-1", "taskyard.db.damaged-1-wal"]
            .map(|file| fs::read(folder.join(file)).unwrap_or_default());
        assert!(kept.as_slice() == before, "the damaged files are kept unchanged");
    }
}
