//! The address at which the worker serves its metrics to Prometheus.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use clap::Args;
use tokio::net::TcpListener;

use crate::failure::UsageError;
use crate::output;

/// The options for metrics.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Serve metrics for Prometheus at http://ADDR/metrics; a port alone means 127.0.0.1.
    #[arg(long, value_name = "ADDR", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Allow an address that other machines can reach.
    #[arg(long, requires = "metrics")]
    insecure: bool,
}

impl MetricsArgs {
    /// Refuses an address that other machines can reach, unless --insecure is given.
    pub fn check(&self) -> Result<(), UsageError> {
        match self.metrics {
            Some(address) if !address.ip().is_loopback() && !self.insecure => {
                Err(UsageError(format!(
                    "{address} can be reached from other machines and the metrics need no token; \
                 use --metrics 127.0.0.1:{}, or add --insecure",
                    address.port()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Listens for Prometheus, if --metrics is given.
    pub async fn listen(&self) -> anyhow::Result<Option<TcpListener>> {
        let Some(address) = self.metrics else { return Ok(None) };
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {address}; choose another address with --metrics")
        })?;
        output::note(format!("metrics: http://{}/metrics", listener.local_addr()?));
        Ok(Some(listener))
    }
}

/// An address, or a port of this machine.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| "write an address such as 127.0.0.1:9100, or a port".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_means_localhost() {
        assert_eq!(address("9100"), Ok(([127, 0, 0, 1], 9100).into()));
        assert_eq!(address("0.0.0.0:9100"), Ok(([0, 0, 0, 0], 9100).into()));
        assert!(address("box7:9100").is_err());
        let exposed = MetricsArgs { metrics: address("0.0.0.0:1").ok(), insecure: false };
        assert!(exposed.check().is_err());
        assert!(MetricsArgs { insecure: true, ..exposed }.check().is_ok());
    }
}
