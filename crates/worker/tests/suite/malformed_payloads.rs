//! Generated decoders with random and damaged payloads: no panic, no more memory than the input justifies.

use taskyard_worker::{Delivery, TypedTask};

use crate::every_type::TypeTask;
use crate::queues::{EmailsTask, NotificationsTask};

/// Random numbers that are the same in every run; the seed is printed when a test fails.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }

    fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }

    /// Small numbers, boundaries and random numbers.
    fn int(&mut self) -> i64 {
        let edges = [i64::MIN, -33, -32, -1, 0, 127, 128, 255, 256, 65_536, 1 << 32, i64::MAX];
        match self.below(3) {
            0 => edges[self.below(edges.len())],
            1 => self.below(300) as i64 - 150,
            _ => (self.0 as i64).wrapping_mul(0x9e37_79b9),
        }
    }

    fn ints(&mut self) -> Vec<i64> {
        (0..self.below(40)).map(|_| self.int()).collect()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let most = if self.below(200) == 0 { 70_000 } else { 60 };
        (0..self.below(most)).map(|_| self.byte()).collect()
    }

    fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    fn task(&mut self) -> TypeTask {
        TypeTask {
            int: self.int(),
            r#match: self.int(),
            list: self.text(),
            from: self.below(2) == 0,
            field: self.bytes(),
            encode: self.ints(),
            numbers: self.ints(),
            ..TypeTask::default()
        }
    }

    /// A damaged payload: bits flipped, cut, with huge lengths, or two of them concatenated.
    fn damaged(&mut self) -> Vec<u8> {
        let mut bytes = self.task().encode();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes.truncate(at),
                1 => bytes.splice(at..at, [0xdd, 0xff, 0xff, 0xff, 0xff]).for_each(drop),
                2 => bytes.splice(at..at, [0xc6, 0x7f, 0xff, 0xff, 0xff]).for_each(drop),
                3 => bytes.extend(self.task().encode()),
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
            }
        }
        bytes
    }
}

/// Decodes it as a task of every queue; each may use 16 times the memory of the input, as the contract promises.
fn decode_all(bytes: &[u8]) -> bool {
    let delivery = Delivery::default();
    let most = 16 * bytes.len();
    if let Ok(task) = EmailsTask::decode(delivery, bytes) {
        let used = task.to.capacity() + task.subject.capacity() + task.body.capacity();
        assert!(used <= most, "{used} of {}", bytes.len());
    }
    if let Ok(task) = NotificationsTask::decode(delivery, bytes) {
        let used = task.message.capacity() + 8 * task.target_ids.capacity();
        assert!(used <= most, "{used} of {}", bytes.len());
    }
    let Ok(task) = TypeTask::decode(delivery, bytes) else { return false };
    let numbers = task.encode.capacity() + task.numbers.capacity();
    let used = task.list.capacity() + task.field.capacity() + 8 * numbers;
    assert!(used <= most, "{used} of {}", bytes.len());
    let again = TypeTask::decode(delivery, &TypedTask::encode(&task));
    assert_eq!(again, Ok(task), "a decoded task is encoded and decoded alike");
    true
}

#[test]
fn encoded_tasks_are_decoded() {
    for seed in 0..1000 {
        let task = Random(seed).task();
        let bytes = TypedTask::encode(&task);
        let found = TypeTask::decode(Delivery::default(), &bytes);
        assert_eq!(found.as_ref(), Ok(&task), "seed {seed}");
        assert_eq!(TypedTask::encode(&found.unwrap()), bytes, "seed {seed}");
        assert!(decode_all(&bytes), "seed {seed}");
    }
}

#[test]
fn damaged_payloads_are_refused_or_decoded() {
    let mut refused = 0;
    for seed in 0..20_000 {
        refused += u32::from(!decode_all(&Random(seed).damaged()));
    }
    assert!((1000..20_000).contains(&refused), "both happen: {refused} were refused");
}

#[test]
fn random_bytes_are_refused_or_decoded() {
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let mut bytes: Vec<u8> = (0..random.below(80)).map(|_| random.byte()).collect();
        // Few bytes begin a list, and without one nothing else would be decoded.
        if let Some(first) = bytes.first_mut().filter(|_| seed % 2 == 0) {
            *first = 0x90 | (*first & 0x0f);
        }
        decode_all(&bytes);
    }
}
