//! Decodes arbitrary bytes as the body of every request and response: accepted or refused, no panic.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run requests`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_core::TubeName;
use taskyard_wire::http::{
    self, AckRequest, AlterRequest, BuryRequest, CreateRequest, DeliveryAnswer, ErrorAnswer,
    FailRequest, FinishAnswer, FinishRequest, PutRequest, ReleaseRequest, TakeRequest, TaskAction,
    TaskActionAnswer, TaskActionRequest, TasksAnswer, TouchRequest, TubeAnswer,
};

/// Reads the body as this request and turns it into a command.
macro_rules! ask {
    ($body:expr, $tube:expr, $($into:path: $request:ty),+ $(,)?) => {$(
        if let Ok(request) = http::parse::<$request>($body) {
            let _ = $into(request, $tube.clone());
        }
    )+};
}

/// Reads the body as this answer and turns it into what a client's caller gets.
macro_rules! answer {
    ($body:expr, $($into:path: $answer:ty),+ $(,)?) => {$(
        if let Ok(answer) = http::parse_answer::<$answer>($body) {
            let _ = $into(answer);
        }
    )+};
}

fuzz_target!(|body: &[u8]| {
    let tube = TubeName::new("t").expect("a good name");
    ask!(
        body, tube,
        PutRequest::into_command: PutRequest,
        TakeRequest::into_command: TakeRequest,
        AckRequest::into_command: AckRequest,
        BuryRequest::into_command: BuryRequest,
        FailRequest::into_command: FailRequest,
        ReleaseRequest::into_command: ReleaseRequest,
        TouchRequest::into_command: TouchRequest,
        FinishRequest::into_command: FinishRequest,
        CreateRequest::into_command: CreateRequest,
        AlterRequest::into_command: AlterRequest,
    );
    if let Ok(request) = http::parse::<TaskActionRequest>(body) {
        for action in TaskAction::ALL {
            if request.check(action).is_ok() {
                let _ = request.query(action).filter();
                let _ = request.command(action, tube.clone(), Vec::new());
            }
        }
    }
    answer!(
        body,
        TaskActionAnswer::into_outcomes: TaskActionAnswer,
        TasksAnswer::into_tasks: TasksAnswer,
        FinishAnswer::into_outcomes: FinishAnswer,
        DeliveryAnswer::into_task: DeliveryAnswer,
        TubeAnswer::into_info: TubeAnswer,
    );
    if let Ok(answer) = http::parse_answer::<ErrorAnswer>(body) {
        let _ = answer.into_error("put");
    }
});
