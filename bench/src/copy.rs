//! From a folder to PostgreSQL.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use taskyard::Client;
use taskyard_core::Timestamp;
use taskyard_store::OpenOptions;
use taskyard_store::copy::{copy, plan};

use super::load::{self, Load};
use super::report::{Report, Row, Target};
use super::{Size, store_in};

pub async fn measure(report: &mut Report, folder: &Path, size: Size, to: &str) -> Result<()> {
    let from = store_in(folder, "copied");
    let client = Client::open(&from).await?;
    load::put(&client, Load { clients: 4, batch: 1_000, tasks: size.tasks }).await?;
    client.close().await?;
    let options = OpenOptions::default();
    let begin = Instant::now();
    let source = taskyard_stores::open(&from, &options)?;
    let target = taskyard_stores::open(to, &options)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let now = Timestamp::from_micros(i64::try_from(now)?);
    let plan = plan(&*source, &*target, &[]).await?;
    let copied = copy(&*source, &*target, now, &plan, |_| ()).await?;
    let seconds = begin.elapsed().as_secs_f64();
    source.close().await?;
    target.close().await?;
    ensure!(copied.tasks == size.tasks as u64 && !copied.already, "{copied:?}");
    report.add(Row {
        what: "copy from sqlite to PostgreSQL".into(),
        figure: seconds * 1_000_000.0 / size.tasks as f64,
        unit: "s a million",
        target: Some(Target::AtMost(60.0)),
        note: format!("{} tasks of 100 bytes, opening included", size.tasks),
    });
    Ok(())
}
