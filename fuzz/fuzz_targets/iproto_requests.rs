//! Decodes arbitrary bytes as requests of an iproto client, as a server does.
//!
//! Run with `cargo xtask fuzz`, or this one alone with `cargo +nightly fuzz run iproto_requests`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use taskyard_core::{Kind, SessionId};
use taskyard_iproto::{
    Call, CallAction, CallContext, Operation, Query, RecentTubes, Rows, Space, encode_request,
    next_frame, parse_call_with, parse_eval, parse_method_of, parse_request, write_fault,
    write_rows,
};

const LIMIT: usize = 1 << 20;
const SESSION: SessionId = SessionId([0; 16]);
const QUEUE: CallContext<'_> = CallContext { prefix: "queue", session: SESSION };

fuzz_target!(|bytes: &[u8]| {
    let mut recent = RecentTubes::default();
    let mut out = Vec::new();
    let mut rest = bytes;
    while let Ok(Some(frame)) = next_frame(rest, LIMIT) {
        assert!(frame.consumed > 0 && frame.consumed <= rest.len());
        serve(&mut recent, &mut out, frame.body);
        rest = &rest[frame.consumed..];
    }
    // Without a length, so that not every attempt has to guess one.
    serve(&mut recent, &mut out, bytes);
});

fn serve(recent: &mut RecentTubes, out: &mut Vec<u8>, body: &[u8]) {
    let request = match parse_request(body) {
        Ok(request) => request,
        Err(bad) => return write_fault(out, bad.sync, &bad.fault),
    };
    match &request.operation {
        Operation::Call { name, args, .. } => {
            let _ = parse_call_with(recent, QUEUE, name, args);
            // Most names are wrong; the arguments get their chance with good ones.
            for name in
                ["queue.tube.t:put", "queue.create_tube", "taskyard.execute", "taskyard.run_schedule"]
            {
                let parsed = parse_call_with(recent, QUEUE, name, args);
                if let Ok(Call { function, action: CallAction::DependsOnKind { tube, args } }) =
                    parsed
                {
                    let _ = parse_method_of(SESSION, Kind::UtubeTtl, tube, function, &args);
                }
            }
        }
        Operation::Eval { expression, args } => {
            let _ = parse_eval(QUEUE, expression, args);
        }
        &Operation::Select { index, limit, offset, iterator, key, .. } => {
            let query = Query { index, limit, offset, iterator, key };
            let _ = write_rows(out, Space::Indexes, &query, Rows::Schema { queue: true });
        }
        _ => {}
    }
    let mut again = Vec::new();
    encode_request(&mut again, request.sync, &request.operation);
    let frame = next_frame(&again, usize::MAX).expect("a good length").expect("a whole frame");
    assert_eq!(parse_request(frame.body), Ok(request));
}
