//! One task as its gateway sees it: it waits, a backend claims it, its frames come, it ends once.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use taskyard_core::Span;
use taskyard_core::classes::Ask;
use taskyard_redis::Failure;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_tungstenite::tungstenite::Message;

use super::NO_WISH;
use super::dial::Talk;
use super::gateway::{Shared, for_client};
use super::wire::{text, texts};
use crate::backend::Plan;
use crate::gateway::{Soon, Stay};
use crate::local::LOST;
use crate::protocol::{Outgoing, QueueNews};
use crate::scheduler::PUT_BACK_MAX;

/// Frames that wait for a client before its backend has to.
const FRAMES: usize = 8;
/// Pieces of standard input that wait for the backend.
const INPUTS: usize = 4;
/// How often Redis is asked about a task that cannot be brought back to it.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

/// What a task is told by its gateway.
#[derive(Clone, Debug)]
pub(super) enum Word {
    /// A backend has claimed it: which attempt, and where.
    Backend(String, String),
    /// Where it stands in the queue.
    Queue(QueueNews),
    /// It does not run, or not again.
    End(Outgoing),
    /// It took its place again: this attempt is over.
    Waits(String),
    /// A look found that no backend has it, and none may still have to come back.
    Unclaimed,
    /// A look found that this attempt is over; its backend still has to say how it ended, if it is there.
    Over(String),
    /// What its program is to be told, in which attempt.
    Control(String, String),
    /// Redis does not know it any more.
    Gone,
    /// Redis lost everything, and has this memory now.
    Reborn(String),
    /// The gateway ends.
    Stop,
}

/// A task in the pool, from outside. What is asked of it is done by a task of its own, so that whoever asks may stop
/// to do so at any moment.
#[derive(Debug)]
pub(super) struct RedisStay {
    pub frames: mpsc::Receiver<Outgoing>,
    pub input: mpsc::Sender<Vec<u8>>,
    pub wishes: mpsc::Sender<(Span, oneshot::Sender<Result<(), String>>)>,
    pub runs: Arc<AtomicBool>,
}

impl Stay for RedisStay {
    fn next(&mut self) -> Soon<'_, Outgoing> {
        Box::pin(async move {
            let gone = || Outgoing::Complete(Some("the gateway is stopping".into()));
            self.frames.recv().await.unwrap_or_else(gone)
        })
    }

    fn lower(&mut self, wish: Span) -> Soon<'_, Result<(), String>> {
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let gone = || Err("the task has ended".to_owned());
            if self.wishes.send((wish, reply)).await.is_err() {
                return gone();
            }
            answer.await.unwrap_or_else(|_| gone())
        })
    }

    fn input(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        self.runs.load(Ordering::Acquire).then(|| self.input.clone())
    }
}

/// The same task from inside.
pub(super) struct Inside {
    pub shared: Arc<Shared>,
    pub id: String,
    /// The memory of Redis that knows the task.
    pub life: String,
    /// The last run that was followed.
    pub followed: Option<(u64, u64)>,
    pub plan: Plan,
    pub words: mpsc::UnboundedReceiver<Word>,
    pub frames: mpsc::Sender<Outgoing>,
    pub input: mpsc::Receiver<Vec<u8>>,
    pub wishes: mpsc::Receiver<(Span, oneshot::Sender<Result<(), String>>)>,
    pub runs: Arc<AtomicBool>,
    /// Whether the client has seen anything of the program.
    pub seen: bool,
    /// How long the client wants it to run at most, in microseconds.
    pub wish: u64,
}

/// What comes of waiting, or of a run.
enum Ran {
    /// The client has heard the end.
    Over,
    /// It goes on elsewhere, or does not; the pool says so.
    Waits,
    /// It goes on there.
    Backend(String, String),
    Last(Outgoing),
    Left,
}

impl RedisStay {
    /// A task of this gateway, both sides of it.
    pub fn new(
        shared: Arc<Shared>,
        id: String,
        life: String,
        plan: Plan,
        words: mpsc::UnboundedReceiver<Word>,
    ) -> (Self, Inside) {
        let (frames_in, frames) = mpsc::channel(FRAMES);
        let (input, input_out) = mpsc::channel(INPUTS);
        let (wishes, wishes_out) = mpsc::channel(1);
        let runs = Arc::new(AtomicBool::new(false));
        let wish = wish_of(&plan.ask);
        let inside = Inside {
            shared,
            id,
            life,
            followed: None,
            plan,
            words,
            frames: frames_in,
            input: input_out,
            wishes: wishes_out,
            runs: runs.clone(),
            seen: false,
            wish,
        };
        (RedisStay { frames, input, wishes, runs }, inside)
    }
}

/// How long a client wants its task to run at most, in microseconds.
pub(super) fn wish_of(ask: &Ask) -> u64 {
    match ask {
        Ask::Timed(wish) => wish.as_micros().unsigned_abs().min(NO_WISH - 1),
        Ask::Default | Ask::Interactive => NO_WISH,
    }
}

impl Inside {
    /// Follows the task to its end, and leaves nothing of it.
    pub async fn run(mut self) {
        let mut ran = Ran::Waits;
        loop {
            self.runs.store(false, Ordering::Release);
            ran = match ran {
                Ran::Waits => self.wait().await,
                Ran::Backend(attempt, address) => self.follow(&attempt, &address).await,
                Ran::Last(last) => {
                    let _ = self.frames.send(last).await;
                    break;
                }
                Ran::Over | Ran::Left => break,
            };
        }
        self.shared.forget(&self.id);
        self.leave().await;
    }

    async fn wait(&mut self) -> Ran {
        loop {
            tokio::select! {
                biased;
                () = self.frames.closed() => return Ran::Left,
                word = self.words.recv() => match word {
                    Some(Word::Backend(attempt, address)) => {
                        if self.is_news(&attempt) {
                            return Ran::Backend(attempt, address);
                        } else if self.followed == numbers(&attempt) {
                            // Nobody follows it any more.
                            return self.lose(&attempt).await;
                        }
                    }
                    Some(Word::Queue(news)) => {
                        // A client that does not read learns the next one.
                        let _ = self.frames.try_send(Outgoing::Queue(news));
                    }
                    Some(Word::End(last)) => return Ran::Last(last),
                    Some(Word::Gone) => return Ran::Last(forgotten()),
                    // It does not run any more, and must not run again.
                    Some(Word::Reborn(life)) if life != self.life && self.seen => {
                        return Ran::Last(Outgoing::Complete(Some(LOST.into())));
                    }
                    Some(Word::Reborn(life)) if life != self.life => {
                        if let Err(why) = self.come_back(true).await {
                            return Ran::Last(Outgoing::Complete(Some(why)));
                        }
                    }
                    // Nobody is left who would follow it.
                    Some(Word::Over(attempt)) => return self.lose(&attempt).await,
                    Some(
                        Word::Waits(_) | Word::Control(..) | Word::Unclaimed | Word::Reborn(_),
                    ) => {}
                    Some(Word::Stop) | None => return Ran::Last(stopping()),
                },
                wish = self.wishes.recv() => if let Some((wish, reply)) = wish {
                    let _ = reply.send(self.ask_for_less(wish).await);
                },
            }
        }
    }

    /// Goes to the backend and passes on what it says. Words are heard on the way too: a backend that does not answer
    /// must not keep the client from another one.
    async fn follow(&mut self, attempt: &str, address: &str) -> Ran {
        self.followed = numbers(attempt);
        let shared = self.shared.clone();
        let mut dialing = pin!(shared.dial(address));
        let mut talk: Option<Talk> = None;
        let mut to_backend: Option<mpsc::Sender<Message>> = None;
        // Whether this run is known to be the task's own: then the client may see it.
        let mut shown = false;
        let mut control = Control::default();
        // When the last words must have come of a run that is over.
        let mut given_up: Option<Instant> = None;
        loop {
            control.pass_on(to_backend.as_ref());
            tokio::select! {
                biased;
                () = self.frames.closed() => return Ran::Left,
                word = self.words.recv() => match word {
                    Some(Word::Control(of, text)) if of == attempt => control.wanted = text,
                    Some(Word::Over(over)) if over == attempt => {
                        let last = || Instant::now() + shared.last_words_max;
                        given_up.get_or_insert_with(last);
                    }
                    Some(word) => if let Some(ran) = self.hear(word, attempt).await {
                        return ran;
                    },
                    None => return Ran::Last(stopping()),
                },
                opened = &mut dialing, if talk.is_none() => match opened {
                    Some(opened) => {
                        to_backend = Some(opened.words.clone());
                        given_up = given_up.map(|_| Instant::now() + shared.last_words_max);
                        talk = Some(opened);
                        self.runs.store(true, Ordering::Release);
                    }
                    None => return self.lose(attempt).await,
                },
                frame = next(&mut talk) => match frame {
                    Some(frame) => {
                        if let Some(ran) = self.pass(frame, attempt, &mut shown).await {
                            return ran;
                        }
                        given_up = given_up.map(|_| Instant::now() + shared.last_words_max);
                    }
                    None => return self.lose(attempt).await,
                },
                () = input(&mut self.input, to_backend.as_ref()) => {}
                // Redis may be slow, and the backend does not wait long for us.
                wish = self.wishes.recv(), if talk.is_some() => if let Some((wish, reply)) = wish {
                    let _ = reply.send(self.ask_for_less(wish).await);
                },
                () = at(given_up), if talk.is_some() => {
                    if talk.as_ref().is_some_and(Talk::was_heard) {
                        given_up = Some(Instant::now() + shared.last_words_max);
                        continue;
                    }
                    tracing::warn!(task = self.id, "a backend is silent about a run that is over");
                    return self.lose(attempt).await;
                }
            }
        }
    }

    /// What comes of a word about a task whose backend is followed, if that is not done any more.
    async fn hear(&mut self, word: Word, attempt: &str) -> Option<Ran> {
        match word {
            Word::Waits(lost) if lost == attempt => Some(Ran::Waits),
            Word::Unclaimed => Some(self.lose(attempt).await),
            Word::End(last) => Some(Ran::Last(last)),
            Word::Gone => Some(Ran::Last(forgotten())),
            Word::Reborn(life) if life != self.life => {
                // The program runs, whether Redis has room for its files or not.
                let _ = self.come_back(false).await;
                None
            }
            Word::Stop => Some(Ran::Last(stopping())),
            // Nobody is left for a word that only looks right.
            Word::Backend(next, address)
                if self.is_news(&next) && self.is_there(&next, &address).await =>
            {
                Some(Ran::Backend(next, address))
            }
            Word::Backend(..)
            | Word::Queue(_)
            | Word::Waits(_)
            | Word::Control(..)
            | Word::Over(_)
            | Word::Reborn(_) => None,
        }
    }

    /// Whether no run was followed that is younger than this one, or the same: words come late, and more than once.
    fn is_news(&self, attempt: &str) -> bool {
        numbers(attempt).is_some_and(|next| self.followed.is_none_or(|last| next > last))
    }

    /// Whether Redis says the same as a word of its own.
    async fn is_there(&self, attempt: &str, address: &str) -> bool {
        let said = self.shared.wire.call("peek", vec![self.id.clone()]).await;
        let said = said.ok().and_then(|said| said.list()?.into_iter().next());
        said.map(texts).and_then(|parts| parts.into_iter().nth(1))
            == Some(format!("{attempt} {address}"))
    }

    /// Passes a frame on to the client; answers what comes of it, if that is an end.
    async fn pass(&mut self, frame: Outgoing, attempt: &str, shown: &mut bool) -> Option<Ran> {
        // Everything but that it began, which says nothing.
        let counts = !matches!(&frame, Outgoing::Output(_, bytes) if bytes.is_empty());
        if counts && !*shown && !self.show(attempt).await {
            // Somebody else has the task by now, or shall have it.
            return Some(self.lose(attempt).await);
        }
        *shown |= counts;
        let last = frame.is_last();
        if self.frames.send(frame).await.is_err() {
            return Some(Ran::Left);
        }
        last.then_some(Ran::Over)
    }

    /// Marks the run as seen. Refused for one that is not the task's own; asked until Redis answers.
    async fn show(&mut self, attempt: &str) -> bool {
        loop {
            match self.say_of("show", attempt).await {
                Ok(said) if said == "shown" => {
                    self.seen = true;
                    return true;
                }
                Ok(said) if said != "later" => return false,
                Err(Failure::Refused(_)) => return false,
                _ if self.frames.is_closed() => return false,
                _ => sleep(PAUSE).await,
            }
        }
    }

    /// The connection to the backend ended without an end of the task, or its run is not the task's own.
    async fn lose(&mut self, attempt: &str) -> Ran {
        loop {
            match self.say_of("lose", attempt).await {
                Ok(said) => match said.as_str() {
                    // It may run again, or not: the scheduler says so.
                    "told" | "waits" => return Ran::Waits,
                    "later" => {}
                    _ => return Ran::Last(Outgoing::Complete(Some(LOST.into()))),
                },
                Err(failure @ Failure::Refused(_)) => {
                    return Ran::Last(Outgoing::Complete(Some(for_client(&failure).into())));
                }
                Err(_) => {}
            }
            if self.frames.is_closed() {
                return Ran::Left;
            }
            sleep(PAUSE).await;
        }
    }

    /// Tells Redis something of a run. A memory that does not know the task yet is told of it first.
    async fn say_of(&mut self, function: &'static str, attempt: &str) -> Result<String, Failure> {
        loop {
            let args = vec![self.id.clone(), attempt.to_owned(), PUT_BACK_MAX.to_string()];
            let said = texts(self.shared.wire.call(function, args).await?);
            let [said, life] = &said[..] else {
                return Err(Failure::Refused("not the answer to a gateway".into()));
            };
            if *life == self.life || self.frames.is_closed() {
                return Ok(said.clone());
            }
            self.come_back(false).await.map_err(Failure::Refused)?;
        }
    }

    /// Redis lost everything: it learns of the task again, under its old number. Answers why it refuses to.
    async fn come_back(&mut self, waits: bool) -> Result<(), String> {
        let args = self.shared.arrival(&self.plan, &self.id, waits, self.seen, self.wish);
        while !self.frames.is_closed() {
            match self.shared.wire.call("arrive", args.clone()).await {
                Ok(said) => {
                    let life = texts(said).pop();
                    self.life = life.unwrap_or_default();
                    return Ok(());
                }
                Err(failure @ Failure::Refused(_)) => return Err(for_client(&failure).into()),
                Err(_) => sleep(PAUSE).await,
            }
        }
        Ok(())
    }

    async fn ask_for_less(&mut self, wish: Span) -> Result<(), String> {
        let wish = wish.as_micros().unsigned_abs().min(NO_WISH - 1);
        let args = vec![self.id.clone(), wish.to_string()];
        let said = self.shared.wire.call("wish", args).await.map(text);
        match said.as_deref() {
            Ok("done") => {
                self.wish = self.wish.min(wish);
                Ok(())
            }
            Ok("raised") => Err("the duration can only be lowered".into()),
            Ok("interactive") => Err("an interactive task has no duration".into()),
            Ok(_) => Err("there is no such task".into()),
            Err(failure) => Err(for_client(failure).into()),
        }
    }

    /// Nothing is left of the task in Redis; a backend that has it is told by a connection that ends at once.
    async fn leave(&self) {
        for _ in 0..3 {
            match self.shared.wire.call("leave", vec![self.id.clone()]).await {
                Ok(said) => {
                    let said = texts(said);
                    let address = said.first().and_then(|text| text.split_once(' '));
                    if let Some((_, address)) = address {
                        drop(self.shared.dial(address).await);
                    }
                    return;
                }
                Err(Failure::Refused(_)) => return,
                // Otherwise it goes when its lease is over.
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

/// What a program is to be told, and what it was.
#[derive(Default)]
struct Control {
    wanted: String,
    told: String,
}

impl Control {
    /// Tells it, if there is a way; where that is full a later look says it once more.
    fn pass_on(&mut self, way: Option<&mpsc::Sender<Message>>) {
        let Some(way) = way.filter(|_| self.wanted != self.told) else { return };
        if way.try_send(Message::text(self.wanted.clone())).is_ok() {
            self.told.clone_from(&self.wanted);
        }
    }
}

/// The next frame, once there is a backend to say it.
async fn next(talk: &mut Option<Talk>) -> Option<Outgoing> {
    match talk {
        Some(talk) => talk.next().await,
        None => pending().await,
    }
}

/// Passes a piece of the standard input on, as soon as there is one and its backend has room for it.
async fn input(pieces: &mut mpsc::Receiver<Vec<u8>>, way: Option<&mpsc::Sender<Message>>) {
    let Some(way) = way else { return pending().await };
    let Ok(room) = way.reserve_many(2).await else { return pending().await };
    let Some(bytes) = pieces.recv().await else { return pending().await };
    for (room, message) in room.zip([Message::text("input"), Message::binary(bytes)]) {
        room.send(message);
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

/// `LEAD-NUMBER`, neither of which ever comes again.
fn numbers(attempt: &str) -> Option<(u64, u64)> {
    let (lead, number) = attempt.split_once('-')?;
    Some((lead.parse().ok()?, number.parse().ok()?))
}

fn forgotten() -> Outgoing {
    let why = "the pool has forgotten the task: its gateway was silent for too long";
    Outgoing::Complete(Some(why.into()))
}

fn stopping() -> Outgoing {
    Outgoing::Complete(Some("the pool is stopping".into()))
}
