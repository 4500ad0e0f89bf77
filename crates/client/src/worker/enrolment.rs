//! How the queue of a contract finds its tube: by its permanent number, else by its name.

use taskyard_core::command::TubeInfo;
use taskyard_core::{Command, Error as Refusal, Execute, Kind, Reply, TubeName, TubeOptions};

use crate::client::unexpected;

use super::inner::Lane;
use super::store::Store;
use super::worker::InitError;

/// How often it looks anew when somebody else was faster.
const TRIES: usize = 3;

/// Sees that a queue has its tube: made, numbered or renamed if need be. Answers the tube's number in the store.
pub(super) async fn enrol(store: &Store, lane: &Lane) -> Result<u32, InitError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let tubes = tubes(store).await?;
        let Some(change) = change(&tubes, lane)? else {
            let found = tubes.iter().find(|tube| tube.name == lane.tube);
            return check(found.ok_or_else(|| unexpected("tubes"))?);
        };
        match store.execute(vec![change]).await.pop() {
            Some(Ok(_)) => {}
            // Another worker of the same contract may begin at the same time: what it did is seen now.
            Some(Err(Refusal::TubeExists(_) | Refusal::TubeNotFound(_))) if tries < TRIES => {}
            Some(Err(refusal)) => return Err(refusal.into()),
            None => return Err(Refusal::ShuttingDown.into()),
        }
    }
}

/// What is to be done before the tube can be used; nothing when it is as it should be.
fn change(tubes: &[TubeInfo], lane: &Lane) -> Result<Option<Command>, InitError> {
    let queue_num = Some(lane.num);
    let named = |name: &TubeName| tubes.iter().find(|tube| tube.name == *name);
    let name = |tube: &TubeInfo| Command::NameTube {
        tube: tube.name.clone(),
        name: lane.tube.clone(),
        queue_num,
    };
    let own = named(&lane.tube);
    match tubes.iter().find(|tube| tube.options.queue_num == queue_num) {
        Some(numbered) if numbered.name == lane.tube => return Ok(None),
        Some(numbered) if lane.was.contains(&numbered.name) => {
            if own.is_some() {
                let why = "the tube of its old name is there too, and only one can be the queue; \
                           move the tasks of one of them and drop it";
                return Err(InitError::UnfitTube { tube: lane.tube.clone(), why });
            }
            return Ok(Some(name(numbered)));
        }
        Some(numbered) => {
            let (tube, wanted) = (numbered.name.clone(), lane.tube.clone());
            return Err(InitError::NumberTaken { num: lane.num, tube, wanted });
        }
        None => {}
    }
    if let Some(own) = own {
        if own.options.queue_num.is_some() {
            let why = "it has the number of another queue, and such numbers are permanent";
            return Err(InitError::UnfitTube { tube: own.name.clone(), why });
        }
        check(own)?;
        return Ok(Some(name(own)));
    }
    // A tube that was made before tubes had numbers.
    let old = lane.was.iter().find_map(named);
    if let Some(old) = old.filter(|old| old.options.queue_num.is_none()) {
        return Ok(Some(name(old)));
    }
    let options = TubeOptions { queue_num, ..TubeOptions::new(Kind::FifoTtl) };
    Ok(Some(Command::CreateTube { tube: lane.tube.clone(), options, if_not_exists: false }))
}

/// Whether tasks of a contract can be in the tube.
fn check(tube: &TubeInfo) -> Result<u32, InitError> {
    let unfit = |why| InitError::UnfitTube { tube: tube.name.clone(), why };
    if !tube.options.kind.has_times() {
        return Err(unfit("its kind has no times, so nothing could be retried later"));
    }
    if tube.options.ttl.is_some() {
        return Err(unfit("its tasks die by their ttl, and typed tasks are never lost"));
    }
    Ok(tube.number)
}

async fn tubes(store: &Store) -> Result<Vec<TubeInfo>, InitError> {
    match store.execute(vec![Command::Tubes { tube: None }]).await.pop() {
        Some(Ok(Reply::Tubes(tubes))) => Ok(tubes),
        Some(Err(refusal)) => Err(refusal.into()),
        _ => Err(unexpected("tubes").into()),
    }
}
