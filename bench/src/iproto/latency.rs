//! Measures the time from a put to a waiting consumer.

use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use super::super::Size;
use super::super::report::{Report, Row, Target};
use super::connect;
use super::load::{Tube, ack_args, id_of, put_args, take_args};

pub async fn measure(report: &mut Report, address: &str, size: Size) -> Result<()> {
    let (producer, consumer) = (connect(address)?, connect(address)?);
    let tube = Tube::create(&producer, "handover", "fifottl").await?;
    let put = put_args();
    let mut latency = Histogram::<u64>::new(3)?;
    let end = Instant::now() + size.seconds;
    while Instant::now() < end {
        let take = consumer.clone();
        let function = tube.take.clone();
        let waiting = tokio::spawn(async move {
            let taken = take.call(&function, &take_args(30)).await;
            (taken, Instant::now())
        });
        // A request on the same connection is answered after the take was read.
        tokio::task::yield_now().await;
        consumer.ping().await?;
        let begin = Instant::now();
        producer.call(&tube.put, &put).await?;
        let (taken, arrived) = waiting.await.context("the load failed")?;
        latency.record(arrived.duration_since(begin).as_nanos() as u64)?;
        consumer.call(&tube.ack, &ack_args(id_of(&taken?)?)).await?;
    }
    let millis = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
    report.add(Row {
        what: "iproto put to waiting take, p50".into(),
        figure: millis(0.5),
        unit: "ms",
        target: Some(Target::AtMost(0.3)),
        note: format!("durable; p99 {:.2} ms; Tarantool 0.35-0.56, Redis 0.15-0.33", millis(0.99)),
    });
    Ok(())
}
