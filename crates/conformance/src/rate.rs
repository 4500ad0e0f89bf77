//! Rate limits of tubes: how many deliveries the tokens allow, and when there are more.

use taskyard_core::limits::{RATE_BURST_MAX, RATE_COUNT_MAX, RATE_PER_SECS_MAX};
use taskyard_core::{
    Command, Error, Finish, Kind, NewTask, RateLimit, Reason, Reply, Span, State, TaskId,
    Timestamp, TubeChange, TubeName, TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, done, ids, name, secs, take, task, task_of};

/// A token each half second, at most three.
const RATE: RateLimit = RateLimit { count: 2, per: secs(1), burst: 3 };
const HALF: Span = Span::from_micros(500_000);
const MICRO: Span = Span::from_micros(1);

fn limited(kind: Kind, rate: RateLimit) -> TubeOptions {
    TubeOptions { rate: Some(Box::new(rate)), ..TubeOptions::new(kind) }
}

fn change(rate: Option<RateLimit>) -> TubeChange {
    TubeChange { rate: Some(rate.map(Box::new)), ..TubeChange::default() }
}

/// The tube `jobs` with this limit and so many tasks; `None` if the store has no limits and refused it.
async fn rated<H: Harness>(queue: &H, rate: RateLimit, tasks: usize) -> Option<TubeName> {
    let options = limited(Kind::FifoTtl, rate);
    let create =
        Command::CreateTube { tube: name("jobs"), options: options.clone(), if_not_exists: false };
    let has = queue.capabilities().rates;
    if !queue.supports(has, "rate limits", create).await {
        return None;
    }
    let tube = queue.tube_with(options).await;
    queue.put_many(&tube, vec![task("x"); tasks]).await;
    Some(tube)
}

/// How many tasks a take of this many delivers.
async fn delivered<H: Harness>(queue: &H, tube: &TubeName, count: usize) -> usize {
    queue.take_many(tube, count).await.len()
}

/// When a task can be delivered because of the limit of its tube.
async fn limited_until<H: Harness>(queue: &H, tube: &TubeName, id: u64) -> Option<Timestamp> {
    match queue.peek_existing(tube, TaskId(id)).await.reason {
        Reason::RateLimited(next) => Some(next),
        Reason::WaitsForConsumer => None,
        other => panic!("unexpected reason: {other:?}"),
    }
}

/// A limit is an option of a tube: it can be given, shown, changed and removed.
pub async fn a_limit_is_an_option<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RATE, 0).await else { return };
    assert_eq!(queue.info(&tube).await.options.rate.as_deref(), Some(&RATE));
    let other = RateLimit { count: 7, per: Span::from_micros(1_500_000), burst: 1 };
    let shown = queue.alter(&tube, change(Some(other))).await;
    assert_eq!(shown.options.rate.as_deref(), Some(&other));
    let resumed = queue.pause(&tube, false).await;
    assert_eq!(resumed.options.rate.as_deref(), Some(&other), "another change leaves it");
    assert_eq!(queue.alter(&tube, change(None)).await.options.rate, None);
    assert_eq!(queue.info(&tube).await.options.rate, None);
}

/// Values out of bounds are refused and change nothing; the bounds themselves are accepted.
pub async fn limits_are_checked<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RATE, 0).await else { return };
    let day = secs(RATE_PER_SECS_MAX);
    let bad = [
        RateLimit { count: 0, ..RATE },
        RateLimit { count: RATE_COUNT_MAX + 1, ..RATE },
        RateLimit { per: Span::from_micros(999), ..RATE },
        RateLimit { per: day + MICRO, ..RATE },
        RateLimit { burst: 0, ..RATE },
        RateLimit { burst: RATE_BURST_MAX + 1, ..RATE },
    ];
    for rate in bad {
        let options = limited(Kind::FifoTtl, rate);
        let create = Command::CreateTube { tube: name("bad"), options, if_not_exists: false };
        let alter = Command::AlterTube { tube: tube.clone(), change: change(Some(rate)) };
        for command in [create, alter] {
            let refusal = queue.refused(command).await;
            assert!(matches!(refusal, Error::Invalid(_)), "{rate:?}: {refusal:?}");
        }
    }
    assert_eq!(queue.tubes().await.len(), 1);
    assert_eq!(queue.info(&tube).await.options.rate.as_deref(), Some(&RATE));
    let most = RateLimit { count: RATE_COUNT_MAX, per: day, burst: RATE_BURST_MAX };
    let least = RateLimit { count: 1, per: Span::from_micros(1_000), burst: 1 };
    for rate in [most, least] {
        let shown = queue.alter(&tube, change(Some(rate))).await;
        assert_eq!(shown.options.rate.as_deref(), Some(&rate));
    }
}

/// A take delivers at most the tokens there are; a new bucket is full.
pub async fn a_take_delivers_at_most_the_tokens<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RATE, 9).await else { return };
    assert_eq!(ids(&queue.take_many(&tube, 2).await), [0, 1]);
    assert_eq!(ids(&queue.take_many(&tube, 9).await), [2]);
    assert_eq!(delivered(&queue, &tube, 9).await, 0);
    let stats = queue.stats(&tube).await;
    assert_eq!((stats.tasks.taken, stats.tasks.ready), (3, 6), "the others stay ready");
}

/// The takes of one batch share the tokens.
pub async fn a_batch_shares_the_tokens<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RATE, 9).await else { return };
    let commands = vec![Command::Take(take(&tube, 2)); 3];
    let counts: Vec<usize> = queue
        .execute(commands)
        .await
        .into_iter()
        .map(|reply| match reply {
            Ok(Reply::Taken(tasks)) => tasks.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(counts, [2, 1, 0]);
}

/// Tokens are added evenly, to the microsecond, and never more than the burst.
pub async fn tokens_are_added_evenly<H: Harness>(queue: H) {
    let third = RateLimit { count: 3, ..RATE };
    let Some(tube) = rated(&queue, third, 20).await else { return };
    assert_eq!(delivered(&queue, &tube, 9).await, 3);
    queue.advance(Span::from_micros(333_333));
    assert_eq!(delivered(&queue, &tube, 9).await, 0);
    queue.advance(MICRO);
    assert_eq!(delivered(&queue, &tube, 9).await, 1);
    // The fraction of the first token counts for the next ones: three in exactly a second.
    queue.advance(Span::from_micros(333_333));
    assert_eq!(delivered(&queue, &tube, 9).await, 1);
    queue.advance(Span::from_micros(333_332));
    assert_eq!(delivered(&queue, &tube, 9).await, 0);
    queue.advance(MICRO);
    assert_eq!(delivered(&queue, &tube, 9).await, 1);
    queue.advance(secs(3_600));
    assert_eq!(delivered(&queue, &tube, 9).await, 3, "at most the burst is saved");
}

/// A task shows that the limit is reached and when the next token comes; the tube is due then, for waiting consumers.
pub async fn the_next_token_is_shown<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RATE, 5).await else { return };
    assert_eq!(limited_until(&queue, &tube, 4).await, None);
    let full = queue.info(&tube).await;
    assert_eq!((full.takeable, full.next_wakeup), (3, None));
    assert_eq!(delivered(&queue, &tube, 3).await, 3);
    let next = queue.now() + HALF;
    assert_eq!(limited_until(&queue, &tube, 4).await, Some(next));
    let empty = queue.info(&tube).await;
    assert_eq!((empty.takeable, empty.next_wakeup), (0, Some(next)));
    queue.advance(Span::from_micros(499_999));
    assert_eq!(limited_until(&queue, &tube, 4).await, Some(next), "the moment stays");
    queue.advance(MICRO);
    assert_eq!(limited_until(&queue, &tube, 4).await, None);
    let one = queue.info(&tube).await;
    assert_eq!((one.takeable, one.next_wakeup), (1, None));
    // Without ready tasks there is nothing to wait for.
    queue.advance(HALF);
    assert_eq!(delivered(&queue, &tube, 9).await, 2);
    assert_eq!(queue.info(&tube).await.next_wakeup, None);
}

/// Other reasons come first: of a paused tube, of a busy sub-queue, of a delayed and of a taken task.
pub async fn other_reasons_come_first<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RateLimit { burst: 1, ..RATE }, 2).await else { return };
    let delayed = queue.put(&tube, NewTask { delay: Some(secs(9)), ..task("x") }).await;
    queue.take(&tube).await;
    let reason = async |tube: &TubeName, id| queue.peek_existing(tube, TaskId(id)).await.reason;
    assert_eq!(reason(&tube, 0).await, Reason::Running);
    assert_eq!(reason(&tube, delayed.0).await, Reason::NotDue(queue.now() + secs(9)));
    let paused = queue.pause(&tube, true).await;
    assert_eq!((paused.takeable, paused.next_wakeup), (0, Some(queue.now() + secs(9))));
    assert_eq!(reason(&tube, 1).await, Reason::TubePaused);
    let options = limited(Kind::Utube, RateLimit { burst: 1, ..RATE });
    let busy = queue.tube_named("busy", options).await;
    queue.put_many(&busy, vec![task_of("a"), task_of("a"), task_of("b")]).await;
    queue.take(&busy).await;
    assert_eq!(reason(&busy, 1).await, Reason::SubqueueBusy);
    assert_eq!(reason(&busy, 2).await, Reason::RateLimited(queue.now() + HALF));
}

/// Released, failed and lost deliveries give no token back; each delivery of a task costs one.
pub async fn ended_deliveries_give_nothing_back<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RateLimit { burst: 4, per: secs(100), ..RATE }, 1).await else {
        return;
    };
    let taken = queue.take(&tube).await;
    done(queue.release(&tube, &taken).await);
    let taken = queue.take(&tube).await;
    let fail = Finish::fail("no route", Some(Span::ZERO));
    assert_eq!(done(queue.finish_lease(&tube, &taken, fail).await).state, State::Ready);
    let taken = queue.take(&tube).await;
    let uncounted = Finish::Release { delay: Span::ZERO, counted: false };
    done(queue.finish_lease(&tube, &taken, uncounted).await);
    queue.take_for(&tube, secs(10)).await;
    queue.advance(secs(10));
    assert_eq!(queue.state(&tube, TaskId(0)).await, State::Ready);
    assert_eq!(delivered(&queue, &tube, 1).await, 0);
    queue.advance(secs(40));
    assert_eq!(delivered(&queue, &tube, 1).await, 1);
}

/// A take that delivers nothing costs nothing: from an empty or a paused tube.
pub async fn an_empty_take_costs_nothing<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RATE, 0).await else { return };
    assert_eq!(delivered(&queue, &tube, 9).await, 0);
    queue.put_many(&tube, vec![task("x"); 9]).await;
    queue.pause(&tube, true).await;
    assert_eq!(delivered(&queue, &tube, 9).await, 0);
    queue.pause(&tube, false).await;
    assert_eq!(delivered(&queue, &tube, 9).await, 3);
}

/// Every kind has the limit, and each tube its own tokens.
pub async fn each_tube_has_its_own_tokens<H: Harness>(queue: H) {
    let Some(first) = rated(&queue, RATE, 9).await else { return };
    assert_eq!(delivered(&queue, &first, 9).await, 3);
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), limited(kind, RATE)).await;
        queue.put_many(&tube, ["a", "b", "c", "d"].map(task_of).to_vec()).await;
        assert_eq!(delivered(&queue, &tube, 9).await, 3, "{kind:?}");
        queue.advance(HALF);
        assert_eq!(delivered(&queue, &tube, 9).await, 1, "{kind:?}");
    }
    let free = queue.tube_named("free", TubeOptions::new(Kind::Fifo)).await;
    queue.put_many(&free, vec![task("x"); 9]).await;
    assert_eq!(delivered(&queue, &free, 9).await, 9);
}

/// A changed limit keeps the whole tokens, at most its burst; the same limit again changes nothing.
pub async fn a_changed_limit_keeps_whole_tokens<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RateLimit { burst: 5, ..RATE }, 30).await else { return };
    assert_eq!(delivered(&queue, &tube, 2).await, 2);
    queue.advance(Span::from_micros(300_000));
    queue.alter(&tube, change(Some(RATE))).await;
    assert_eq!(delivered(&queue, &tube, 9).await, 3, "no more than the burst");
    queue.advance(Span::from_micros(300_000));
    queue.alter(&tube, change(Some(RATE))).await;
    let next = queue.now() + Span::from_micros(200_000);
    assert_eq!(limited_until(&queue, &tube, 29).await, Some(next), "the same limit");
    // The part of a token is lost.
    let slow = RateLimit { count: 1, per: secs(60), burst: 9 };
    queue.alter(&tube, change(Some(slow))).await;
    assert_eq!(limited_until(&queue, &tube, 29).await, Some(queue.now() + secs(60)));
    queue.alter(&tube, change(None)).await;
    assert_eq!(limited_until(&queue, &tube, 29).await, None);
    assert_eq!(delivered(&queue, &tube, 11).await, 11, "no limit");
    queue.alter(&tube, change(Some(RATE))).await;
    assert_eq!(delivered(&queue, &tube, 9).await, 3, "a limit where there was none begins full");
}

/// A renamed tube keeps its tokens; a new tube of a used name has all of them.
pub async fn tokens_belong_to_the_tube<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RATE, 4).await else { return };
    assert_eq!(delivered(&queue, &tube, 3).await, 3);
    let other = name("other");
    let rename = Command::NameTube { tube: tube.clone(), name: other.clone(), queue_num: None };
    queue.must(rename).await;
    assert_eq!(delivered(&queue, &other, 9).await, 0);
    queue.truncate(&other).await;
    queue.put_many(&other, vec![task("x"); 4]).await;
    assert_eq!(delivered(&queue, &other, 9).await, 0, "a truncate gives nothing back");
    queue.drop_tube(&other).await;
    let new = queue.tube_named("other", limited(Kind::FifoTtl, RATE)).await;
    queue.put_many(&new, vec![task("x"); 4]).await;
    assert_eq!(delivered(&queue, &new, 9).await, 3);
}

/// The limit and its tokens survive a restart, and tokens are added while the queue is down.
pub async fn tokens_survive_a_restart<H: Harness>(queue: H) {
    let Some(tube) = rated(&queue, RATE, 9).await else { return };
    assert_eq!(delivered(&queue, &tube, 9).await, 3);
    queue.advance(Span::from_micros(300_000));
    let durable = queue.capabilities().durable;
    let queue = queue.restart().await;
    if !durable {
        assert_eq!(queue.tubes().await, []);
        return;
    }
    assert_eq!(queue.info(&tube).await.options.rate.as_deref(), Some(&RATE));
    assert_eq!(delivered(&queue, &tube, 9).await, 0);
    let next = queue.now() + Span::from_micros(200_000);
    assert_eq!(limited_until(&queue, &tube, 8).await, Some(next));
    queue.advance(Span::from_micros(200_000));
    let queue = queue.restart().await;
    assert_eq!(delivered(&queue, &tube, 9).await, 1);
    queue.advance(secs(9));
    let queue = queue.restart().await;
    assert_eq!(delivered(&queue, &tube, 9).await, 3);
}
