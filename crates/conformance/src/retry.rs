//! Retry policies of tubes: the delays between attempts, and the number of attempts of a task.

use taskyard_core::limits::{
    RETRY_DELAY_SECS_MAX, RETRY_FACTOR_PERMILLE_MAX, RETRY_JITTER_PERMILLE_MAX,
};
use taskyard_core::{
    AfterFailure, Command, Error, Fail, Finish, FinishItem, Holder, Kind, NewTask, Reason,
    RetryPolicy, Span, State, Task, TaskId, TubeChange, TubeName, TubeOptions,
};

use super::Harness;
use super::commands::{QueueCommands, almost, done, lease, name, put, secs, session, task};

/// 2 s, 6 s, 18 s, then 20 s, without jitter.
const STEPS: RetryPolicy = RetryPolicy {
    delay: secs(2),
    factor_permille: 3_000,
    delay_max: secs(20),
    jitter_permille: 0,
    retry_lost: false,
};

fn with_policy(kind: Kind, policy: RetryPolicy) -> TubeOptions {
    TubeOptions { retry: Some(Box::new(policy)), ..TubeOptions::new(kind) }
}

fn change(policy: Option<RetryPolicy>) -> TubeChange {
    TubeChange { retry: Some(policy.map(Box::new)), ..TubeChange::default() }
}

/// The tube `jobs` with this policy; `None` if the store has no policies and refused it.
async fn retrying<H: Harness>(queue: &H, policy: RetryPolicy) -> Option<TubeName> {
    retrying_tube(queue, "jobs", policy).await
}

async fn retrying_tube<H: Harness>(queue: &H, text: &str, policy: RetryPolicy) -> Option<TubeName> {
    let options = with_policy(Kind::FifoTtl, policy);
    let tube = name(text);
    let create = Command::CreateTube { tube, options: options.clone(), if_not_exists: false };
    let has = queue.capabilities().retries;
    if !queue.supports(has, "retry policies", create).await {
        return None;
    }
    Some(queue.tube_named(text, options).await)
}

fn by_policy(seed: u32) -> Finish {
    Finish::fail_by_policy("no route", seed)
}

/// By the policy; without one after this delay.
fn by_policy_or(default_delay: Span) -> Finish {
    let then = AfterFailure::Policy { seed: 9, default_delay };
    Finish::Fail(Box::new(Fail { error: "no route".into(), then }))
}

/// Takes the only task and fails it by the policy.
async fn fail_next<H: Harness>(queue: &H, tube: &TubeName, seed: u32) -> Task {
    let taken = queue.take(tube).await;
    done(queue.finish_lease(tube, &taken, by_policy(seed)).await)
}

/// How long a failed task waits from now.
#[track_caller]
fn waits<H: Harness>(queue: &H, task: &Task) -> Span {
    assert_eq!(task.state, State::Delayed);
    let due = task.due.expect("a delayed task has a moment at which it is ready");
    Span::from_micros(due.as_micros() - queue.now().as_micros())
}

/// A policy is an option of a tube: it can be given, shown, changed and removed.
pub async fn a_policy_is_an_option<H: Harness>(queue: H) {
    let Some(tube) = retrying(&queue, STEPS).await else { return };
    assert_eq!(queue.info(&tube).await.options.retry.as_deref(), Some(&STEPS));
    let other = RetryPolicy { retry_lost: true, ..RetryPolicy::DEFAULT };
    let shown = queue.alter(&tube, change(Some(other))).await;
    assert_eq!(shown.options.retry.as_deref(), Some(&other));
    let paused = queue.pause(&tube, false).await;
    assert_eq!(paused.options.retry.as_deref(), Some(&other), "another change leaves it");
    assert_eq!(queue.alter(&tube, change(None)).await.options.retry, None);
    assert_eq!(queue.info(&tube).await.options.retry, None);
    // A policy without delays is different from no policy.
    let none = RetryPolicy { delay: Span::ZERO, delay_max: Span::ZERO, ..STEPS };
    queue.alter(&tube, change(Some(none))).await;
    assert_eq!(queue.info(&tube).await.options.retry.as_deref(), Some(&none));
}

/// Values out of bounds are refused and change nothing; the bounds themselves are accepted.
pub async fn policies_are_checked<H: Harness>(queue: H) {
    let Some(tube) = retrying(&queue, STEPS).await else { return };
    let month = secs(RETRY_DELAY_SECS_MAX);
    let bad = [
        RetryPolicy { delay: secs(21), ..STEPS },
        RetryPolicy { delay_max: month + Span::from_micros(1), ..STEPS },
        RetryPolicy { factor_permille: 999, ..STEPS },
        RetryPolicy { factor_permille: RETRY_FACTOR_PERMILLE_MAX + 1, ..STEPS },
        RetryPolicy { jitter_permille: RETRY_JITTER_PERMILLE_MAX + 1, ..STEPS },
    ];
    for policy in bad {
        let options = with_policy(Kind::FifoTtl, policy);
        let create = Command::CreateTube { tube: name("bad"), options, if_not_exists: false };
        let alter = Command::AlterTube { tube: tube.clone(), change: change(Some(policy)) };
        for command in [create, alter] {
            let refusal = queue.refused(command).await;
            assert!(matches!(refusal, Error::Invalid(_)), "{policy:?}: {refusal:?}");
        }
    }
    assert_eq!(queue.tubes().await.len(), 1);
    assert_eq!(queue.info(&tube).await.options.retry.as_deref(), Some(&STEPS));
    let widest = RetryPolicy {
        delay: month,
        factor_permille: RETRY_FACTOR_PERMILLE_MAX,
        delay_max: month,
        jitter_permille: RETRY_JITTER_PERMILLE_MAX,
        retry_lost: true,
    };
    let least = RetryPolicy { delay: Span::ZERO, factor_permille: 1_000, ..STEPS };
    for policy in [widest, least] {
        let shown = queue.alter(&tube, change(Some(policy))).await;
        assert_eq!(shown.options.retry.as_deref(), Some(&policy));
    }
}

/// The delay is multiplied by the factor after each attempt, up to the longest.
pub async fn the_delay_grows_up_to_the_longest<H: Harness>(queue: H) {
    let Some(tube) = retrying(&queue, STEPS).await else { return };
    let id = queue.put(&tube, task("x")).await;
    for (attempts, seconds) in (1..).zip([2, 6, 18, 20, 20]) {
        let failed = fail_next(&queue, &tube, attempts * 1_000).await;
        assert_eq!(
            (failed.attempts, failed.reason),
            (attempts, Reason::NotDue(failed.due.unwrap()))
        );
        assert_eq!(waits(&queue, &failed), secs(seconds), "after attempt {attempts}");
        queue.advance(almost(seconds));
        assert_eq!(queue.take_many(&tube, 1).await, [], "after attempt {attempts}");
        queue.advance(Span::from_micros(1));
        assert_eq!(queue.state(&tube, id).await, State::Ready, "after attempt {attempts}");
    }
}

/// The jitter comes from the random number of the command and the id of the task, so every store computes the same delay.
pub async fn the_jitter_comes_from_the_number_of_the_command<H: Harness>(queue: H) {
    let policy = RetryPolicy { factor_permille: 1_700, jitter_permille: 900, ..STEPS };
    let Some(tube) = retrying(&queue, policy).await else { return };
    queue.put_texts(&tube, &["a", "b", "c", "d"]).await;
    for (attempt, seed) in (1..).zip([0, 77, u32::MAX, 67_108_859, 5]) {
        let taken = queue.take_many(&tube, 9).await;
        assert_eq!(taken.len(), 4, "attempt {attempt}");
        let finish = |task: &Task| FinishItem {
            id: task.id,
            holder: Holder::Lease(lease(task)),
            finish: by_policy(seed),
        };
        let outcomes = queue.finish_many(&tube, taken.iter().map(finish).collect()).await;
        let failed: Vec<Task> = outcomes.into_iter().map(done).collect();
        let found: Vec<Span> = failed.iter().map(|task| waits(&queue, task)).collect();
        let expected = taken.iter().map(|task| policy.delay_after(attempt, seed, task.id));
        assert_eq!(found, expected.collect::<Vec<_>>(), "attempt {attempt}");
        assert!(found.iter().any(|delay| *delay != found[0]), "tasks have different delays");
        queue.advance(secs(60));
    }
}

/// The delay of a policy works as a delay that the worker chose.
pub async fn a_policy_delay_is_like_an_explicit_one<H: Harness>(queue: H) {
    let Some(tube) = retrying(&queue, STEPS).await else { return };
    let both = ["by policy", "explicit"];
    let new = |text: &&str| NewTask { ttl: Some(secs(100)), ttr: Some(secs(9)), ..task(text) };
    queue.put_many(&tube, both.iter().map(new).collect()).await;
    let taken = queue.take_many(&tube, 2).await;
    queue.advance(secs(1));
    let policy = done(queue.finish_lease(&tube, &taken[0], by_policy(3)).await);
    let explicit = Finish::fail("no route", Some(secs(2)));
    let explicit = done(queue.finish_lease(&tube, &taken[1], explicit).await);
    let same = |task: Task| Task { id: policy.id, body: None, ..task };
    assert_eq!(same(policy.clone()), same(explicit));
    let calls = queue.calls(&tube).await;
    assert_eq!((calls.release, calls.bury), (2, 0));
}

/// A delay of the call is used instead of the policy's, and so is a bury.
pub async fn an_explicit_end_ignores_the_policy<H: Harness>(queue: H) {
    let Some(tube) = retrying(&queue, RetryPolicy::DEFAULT).await else { return };
    queue.put_texts(&tube, &["later", "now", "never"]).await;
    let taken = queue.take_many(&tube, 3).await;
    let end = |delay| Finish::fail("no route", delay);
    let later = done(queue.finish_lease(&tube, &taken[0], end(Some(secs(7)))).await);
    assert_eq!(waits(&queue, &later), secs(7));
    let now = done(queue.finish_lease(&tube, &taken[1], end(Some(Span::ZERO))).await);
    assert_eq!(now.state, State::Ready);
    let never = done(queue.finish_lease(&tube, &taken[2], end(None)).await);
    assert_eq!((never.state, never.reason), (State::Buried, Reason::Buried));
}

/// Without a policy a failure by policy waits for its default delay, also if the policy was removed while the task
/// ran, and a lost lease is ready at once.
pub async fn without_a_policy_nothing_changes<H: Harness>(queue: H) {
    let tube = queue.tube(Kind::FifoTtl).await;
    queue.put(&tube, NewTask { ttr: Some(secs(5)), ..task("x") }).await;
    queue.take(&tube).await;
    queue.advance(secs(5));
    let failed = fail_next(&queue, &tube, 9).await;
    assert_eq!((failed.state, failed.attempts), (State::Ready, 2));
    let taken = queue.take(&tube).await;
    let failed = done(queue.finish_lease(&tube, &taken, by_policy_or(secs(7))).await);
    assert_eq!(waits(&queue, &failed), secs(7));
    let Some(removed) = retrying_tube(&queue, "removed", STEPS).await else { return };
    queue.put(&removed, task("x")).await;
    let taken = queue.take(&removed).await;
    queue.alter(&removed, change(None)).await;
    let failed = done(queue.finish_lease(&removed, &taken, by_policy_or(secs(4))).await);
    assert_eq!(waits(&queue, &failed), secs(4));
}

/// In kinds without times the task is ready at once, but it is not buried.
pub async fn kinds_without_times_have_no_delay<H: Harness>(queue: H) {
    let Some(_) = retrying(&queue, STEPS).await else { return };
    for kind in Kind::ALL {
        let tube = queue.tube_named(kind.name(), with_policy(kind, STEPS)).await;
        queue.put(&tube, task("x")).await;
        let expected = if kind.has_times() { State::Delayed } else { State::Ready };
        let failed = fail_next(&queue, &tube, 4).await;
        assert_eq!((failed.state, failed.attempts), (expected, 1), "{kind:?}");
    }
}

/// With `retry_lost` a task waits after its lease expired, as after a failure; otherwise it is ready at once.
pub async fn an_expired_lease_waits_if_the_policy_says_so<H: Harness>(queue: H) {
    let Some(tube) = retrying(&queue, STEPS).await else { return };
    let id = queue.put(&tube, NewTask { ttr: Some(secs(5)), ..task("x") }).await;
    queue.take(&tube).await;
    queue.advance(secs(5));
    assert_eq!(queue.state(&tube, id).await, State::Ready);
    queue.alter(&tube, change(Some(RetryPolicy { retry_lost: true, ..STEPS }))).await;
    for (attempts, seconds) in [(2, 6), (3, 18)] {
        queue.take(&tube).await;
        queue.advance(secs(5));
        let lost = queue.peek_existing(&tube, id).await;
        assert_eq!((lost.state, lost.attempts), (State::Delayed, attempts));
        assert_eq!(waits(&queue, &lost), secs(seconds));
        assert_eq!(queue.take_many(&tube, 1).await, []);
        queue.advance(secs(seconds));
    }
    assert_eq!(queue.calls(&tube).await.ttr, 3);
}

/// The jitter after an expired lease comes from the random number of the tick and the id of the task; the delay begins with the tick.
pub async fn the_jitter_of_expired_leases_comes_from_the_tick<H: Harness>(queue: H) {
    let policy = RetryPolicy { factor_permille: 1_700, jitter_permille: 900, ..STEPS };
    let policy = RetryPolicy { retry_lost: true, ..policy };
    let Some(tube) = retrying(&queue, policy).await else { return };
    let new = |text| NewTask { ttr: Some(secs(5)), ..task(text) };
    queue.put_many(&tube, ["a", "b", "c", "d"].map(new).to_vec()).await;
    for (attempt, seed) in (1..).zip([0, 77, u32::MAX, 67_108_859, 5]) {
        if !queue.seed_ticks(seed) {
            return;
        }
        let taken = queue.take_many(&tube, 9).await;
        assert_eq!(taken.len(), 4, "attempt {attempt}");
        queue.advance(secs(7));
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        for task in &taken {
            found.push(waits(&queue, &queue.peek_existing(&tube, task.id).await));
            expected.push(policy.delay_after(attempt, seed, task.id));
        }
        assert_eq!(found, expected, "attempt {attempt}");
        assert!(found.iter().any(|delay| *delay != found[0]), "tasks have different delays");
        queue.advance(secs(60));
    }
}

/// Releases, ended sessions and released tubes do not use the policy.
pub async fn other_ends_do_not_use_the_policy<H: Harness>(queue: H) {
    let policy = RetryPolicy { retry_lost: true, ..STEPS };
    let Some(tube) = retrying(&queue, policy).await else { return };
    let id = queue.put(&tube, task("x")).await;
    let taken = queue.take(&tube).await;
    assert_eq!(done(queue.release(&tube, &taken).await).state, State::Ready);
    queue.take(&tube).await;
    queue.release_all(&tube).await;
    assert_eq!(queue.state(&tube, id).await, State::Ready);
    queue.join(session(1)).await;
    queue.take_as(&tube, session(1)).await;
    queue.leave(session(1)).await;
    let back = queue.peek_existing(&tube, id).await;
    assert_eq!((back.state, back.attempts), (State::Ready, 3));
    // They are attempts, so the next failure waits for longer.
    assert_eq!(waits(&queue, &fail_next(&queue, &tube, 0).await), secs(20));
}

/// The last attempt buries, with a policy too; a kick with new attempts begins with the first delay.
pub async fn the_last_attempt_buries<H: Harness>(queue: H) {
    let Some(tube) = retrying(&queue, STEPS).await else { return };
    let limit = TubeChange { attempts_max: Some(Some(2)), ..TubeChange::default() };
    queue.alter(&tube, limit).await;
    let id = queue.put(&tube, task("x")).await;
    assert_eq!(waits(&queue, &fail_next(&queue, &tube, 1).await), secs(2));
    queue.advance(secs(2));
    let dead = fail_next(&queue, &tube, 1).await;
    assert_eq!((dead.state, dead.reason), (State::Buried, Reason::AttemptsUsedUp));
    queue.kick_tasks(&tube, &[id.0], true).await;
    assert_eq!(waits(&queue, &fail_next(&queue, &tube, 1).await), secs(2));
}

/// A task may have its own number of attempts, fewer or more than the tube's.
pub async fn a_task_has_its_own_number_of_attempts<H: Harness>(queue: H) {
    let own = |most| NewTask { attempts_max: Some(most), ..task("own") };
    let options = TubeOptions { attempts_max: Some(2), ..TubeOptions::new(Kind::FifoTtl) };
    let tube = queue.tube_with(options).await;
    let has = queue.capabilities().retries;
    if !queue.supports(has, "attempts_max of a task", put(&tube, vec![own(1)])).await {
        return;
    }
    let refusal = queue.refused(put(&tube, vec![task("x"), own(0)])).await;
    assert!(matches!(refusal, Error::Invalid(_)), "{refusal:?}");
    queue.put_many(&tube, vec![own(1), task("tube's"), own(3)]).await;
    let shown = queue.peek_existing(&tube, TaskId(2)).await;
    assert_eq!(shown.attempts_max, Some(3));
    for (round, alive) in [(1, vec![1, 2]), (2, vec![2]), (3, vec![])] {
        for taken in queue.take_many(&tube, 9).await {
            let ended = done(queue.release(&tube, &taken).await);
            let is_alive = alive.contains(&taken.id.0);
            let expected = if is_alive { State::Ready } else { State::Buried };
            assert_eq!(ended.state, expected, "{} after attempt {round}", taken.id);
        }
    }
    let dead = queue.peek_existing(&tube, TaskId(0)).await;
    assert_eq!((dead.attempts, dead.reason), (1, Reason::AttemptsUsedUp));
    assert_eq!(dead.attempts_max, Some(1));
    let change = TubeChange { attempts_max: Some(None), ..TubeChange::default() };
    queue.alter(&tube, change).await;
    assert_eq!(queue.kick(&tube, 9).await, 3);
    for taken in queue.take_many(&tube, 9).await {
        let ended = done(queue.release(&tube, &taken).await);
        let expected = if taken.id.0 == 1 { State::Ready } else { State::Buried };
        assert_eq!(ended.state, expected, "{} without a number of the tube", taken.id);
    }
}

/// Policies, the delays that they gave and the numbers of tasks survive a restart; a restart itself is no failure.
pub async fn policies_survive_a_restart<H: Harness>(queue: H) {
    let policy = RetryPolicy { retry_lost: true, ..STEPS };
    let Some(tube) = retrying(&queue, policy).await else { return };
    let own = |text| NewTask { attempts_max: Some(2), ..task(text) };
    queue.put_many(&tube, vec![own("failed"), own("taken")]).await;
    let failed = fail_next(&queue, &tube, 8).await;
    let held = queue.take(&tube).await;
    let durable = queue.capabilities().durable;
    let queue = queue.restart().await;
    if !durable {
        assert_eq!(queue.tubes().await, []);
        return;
    }
    assert_eq!(queue.info(&tube).await.options.retry.as_deref(), Some(&policy));
    let kept = queue.peek_existing(&tube, failed.id).await;
    assert_eq!((kept.due, kept.attempts_max), (failed.due, Some(2)));
    assert_eq!(queue.peek_existing(&tube, held.id).await.state, State::Ready);
    queue.advance(secs(2));
    assert_eq!(fail_next(&queue, &tube, 8).await.state, State::Buried, "its second attempt");
}
