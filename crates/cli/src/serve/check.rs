//! Checks the arguments of `serve` without starting anything: reads the files that they name, and creates none.

use std::collections::HashSet;

use taskyard_core::TubeName;
use taskyard_pool::redis::{BackendTrust, PoolAddress};
use taskyard_sql::Source;

use super::ServeArgs;
use crate::contract_check::ContractCheck;
use crate::failure::UsageError;
use crate::{pool, sql};

/// What is checked, and how.
type Check = fn(&ServeArgs) -> anyhow::Result<()>;

impl ServeArgs {
    /// Everything that would keep a server with these arguments from starting, as far as that is visible without a start.
    pub fn problems(&self) -> Vec<String> {
        let checks: [Check; 9] = [
            Self::check_limits,
            |args| args.access.without_audit().map(drop),
            |args| args.iproto.config(&args.access.tls).map(drop),
            |args| Ok(args.events_tube.as_deref().map(TubeName::new).transpose().map(drop)?),
            |args| args.peers.servers(args.is_shared()).map(drop),
            |args| ContractCheck::read(&args.contract).map(drop),
            Self::check_pool,
            Self::check_sql,
            Self::check_store,
        ];
        let text = |error: anyhow::Error| format!("{error:#}");
        let mut problems: Vec<String> =
            checks.into_iter().filter_map(|check| check(self).err()).map(text).collect();
        problems.extend(self.access.check_audit().err().map(text));
        if problems.is_empty() {
            problems.extend(self.check_exposure().err().map(text));
        }
        // Two checks read the same certificate.
        let mut seen = HashSet::new();
        problems.retain(|problem| seen.insert(problem.clone()));
        problems
    }

    /// Refuses addresses that other machines can reach without authentication.
    fn check_exposure(&self) -> anyhow::Result<()> {
        let (config, _) = self.config_with(self.access.without_audit()?)?;
        Ok(config.check()?)
    }

    fn check_pool(&self) -> anyhow::Result<()> {
        let wrong = |error: String| UsageError(error);
        if let Some(file) = &self.pool {
            pool::read(file)?;
        }
        if let Some(url) = &self.pool_redis {
            PoolAddress::parse(url, "gateway").map_err(|error| wrong(error.to_string()))?;
        }
        if let Some(file) = &self.pool_backend_ca {
            BackendTrust::read(file).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(())
    }

    fn check_sql(&self) -> anyhow::Result<()> {
        if let Some(file) = &self.sql {
            Source::File(file.clone()).read().map_err(|error| UsageError(error.to_string()))?;
        }
        if let Some(url) = self.database.as_ref().filter(|_| self.sql.is_some()) {
            sql::conninfo(url)?;
        }
        Ok(())
    }

    fn check_store(&self) -> anyhow::Result<()> {
        let url = self.store_url();
        taskyard_stores::check_url(&url)?;
        let folder = url.strip_prefix("sqlite:").map(std::path::Path::new);
        match folder.filter(|folder| folder.exists() && !folder.is_dir()) {
            Some(path) => {
                let text = format!("{} is not a folder, so it cannot have tasks", path.display());
                Err(UsageError(text).into())
            }
            None => Ok(()),
        }
    }
}
