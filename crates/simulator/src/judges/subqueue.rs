//! Judges that at most one task of a sub-queue is delivered at a time.

use crate::evidence::Evidence;
use crate::judges::overlap::find;

/// Finds two deliveries of one sub-queue.
pub fn judge(evidence: &Evidence<'_>) -> Option<String> {
    let group = |delivery: &_| {
        let put = evidence.put_of(delivery)?;
        Some((put.tube, put.task.subqueue.clone()?))
    };
    let (held, new) = find(evidence, group)?;
    Some(format!(
        "task {} of '{}' was delivered while task {} of the same sub-queue was held with lease {}",
        new.id, new.tube, held.id, held.lease
    ))
}

#[cfg(test)]
mod tests {
    use taskyard_core::Finish;

    use crate::judges::script::Script;

    fn script() -> Script {
        let mut script = Script::new();
        script.put("subqueues", 0, |task| task.subqueue = Some("a".into()));
        script.put("subqueues", 1, |task| task.subqueue = Some("a".into()));
        script.put("subqueues", 2, |task| task.subqueue = Some("b".into()));
        script.take("subqueues", 0, 1, 10);
        script.take("subqueues", 2, 2, 10);
        script
    }

    #[test]
    fn one_of_each_sub_queue() {
        let mut script = script();
        script.finish("subqueues", 0, 1, Finish::Ack, true);
        script.take("subqueues", 1, 3, 10);
        assert_eq!(script.judge(super::judge), None);
    }

    #[test]
    fn two_of_one_sub_queue() {
        let mut script = script();
        script.take("subqueues", 1, 3, 10);
        assert!(script.judge(super::judge).unwrap().contains("while task 0"));
    }
}
