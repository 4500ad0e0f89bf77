//! The same without a disk: the cost of the rules and the engine.

use anyhow::Result;
use taskyard::Client;

use super::Size;
use super::load::{self, Load};
use super::report::{Report, Row, Target};

pub async fn measure(report: &mut Report, size: Size) -> Result<()> {
    for (clients, batch) in [(256, 1), (16, 100)] {
        let client = Client::open("memory:").await?;
        let load = Load { clients, batch, tasks: size.tasks };
        let put = load::put(&client, load).await?;
        let pairs = load::take_and_ack(&client, load).await?;
        client.close().await?;
        let what = format!("memory, {clients} clients x {batch}");
        put.report_processor_time(report, &format!("{what}, put"));
        pairs.report_processor_time(report, &format!("{what}, take + ack"));
        let commands = 3.0 / (1.0 / put.rate() + 1.0 / pairs.rate());
        report.add(Row {
            what,
            figure: commands,
            unit: "commands/s",
            target: Some(Target::AtLeast(1_000_000.0)),
            note: format!("put {:.0}/s, take + ack {:.0} pairs/s", put.rate(), pairs.rate()),
        });
    }
    Ok(())
}
