//! Handlers and functions that put typed tasks into another queue.

use std::time::Duration;

use taskyard_testkit::server::block_on;
use taskyard_worker::testing::TestKit;
use taskyard_worker::{
    BatchOutcome, Dispatcher, FunctionWorker, Handler, PutOptions, RawTask, RunningTask, TypedTask,
};
use tokio::sync::oneshot;

use crate::queues::EmailsTask;
use crate::recording_handler::{Act, RecordingHandler, client, mail};

/// A kit with the queues of the contract.
async fn kit_with_queues() -> TestKit {
    let kit = TestKit::new();
    RecordingHandler::new(Act::Done).worker(&kit).build().unwrap().init().await.unwrap();
    kit
}

async fn receivers(kit: &TestKit) -> Vec<String> {
    kit.tasks::<EmailsTask>().await.into_iter().map(|mail| mail.to).collect()
}

#[test]
fn a_handler_puts_tasks_into_another_queue() {
    block_on(async {
        let kit = kit_with_queues().await;
        let handler = Handler::raw(|ctx, store, tasks: Vec<RawTask>| async move {
            let mut outcome = BatchOutcome::new(&store);
            let mut mails = Vec::new();
            for RawTask { delivery, .. } in tasks {
                let trace = ctx.trace(delivery.task_id).map(|trace| trace.child());
                mails.push((mail("ann"), PutOptions { trace, ..PutOptions::default() }));
                outcome.done(delivery.task_id);
            }
            EmailsTask::put_each(&store, &mails).await?;
            outcome.commit().await
        });
        let handlers = Dispatcher::new([]).with_queue(7, "orders", handler);
        let worker = kit.worker(handlers).build().unwrap();
        let running = kit.start(&worker).await;
        client(&kit).put_many("orders", &[1, 2]).await.unwrap();
        kit.wait_until("orders", |tube| tube.stats.calls.ack == 2).await;
        assert_eq!(receivers(&kit).await, ["ann", "ann"]);
        running.stop().await;
    });
}

#[test]
fn a_function_puts_tasks_into_another_queue() {
    block_on(async {
        let kit = kit_with_queues().await;
        let worker = FunctionWorker::new(kit.queue().clone(), "orders").timer(kit.timer());
        let (stop, stopped) = oneshot::channel::<()>();
        let function = async |to: String, task: RunningTask| {
            mail(&to).put(task.store(), PutOptions::default()).await.map(drop)
        };
        let mut running = tokio::spawn(worker.run_until(async { drop(stopped.await) }, function));
        while client(&kit).put("orders", "ben").await.is_err() {
            tokio::task::yield_now().await;
        }
        kit.wait_until("orders", |tube| tube.stats.calls.ack == 1).await;
        assert_eq!(receivers(&kit).await, ["ben"]);
        stop.send(()).unwrap();
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut running => break ended,
                () = tokio::task::yield_now() => kit.advance(Duration::from_millis(10)),
            }
        };
        ended.unwrap().unwrap();
    });
}
