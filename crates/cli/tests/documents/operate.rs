//! The pages about operation and security.

use crate::document_run::{DocumentRun, commands_on_a_server, document_tests};

document_tests! {
    backup: "docs/operate/backup.md", backup_steps;
    monitoring: "docs/operate/monitoring.md", commands_on_a_server;
    operating: "docs/operating.md", operating_steps;
    security: "docs/security.md", security_steps;
    upgrade: "docs/operate/upgrade.md", upgrade_steps;
}

fn backup_steps(document: &mut DocumentRun) -> Option<()> {
    document.serve();
    document.succeed("taskyard put mail hello");
    document.run();
    Some(())
}

fn operating_steps(document: &mut DocumentRun) -> Option<()> {
    document.with_postgres()?;
    // The settings of the page name this file.
    document.run();
    document.stop_server();
    document.copy("deploy/systemd/taskyard.yaml", "taskyard.yaml");
    document.token("token");
    document.succeed("chmod 600 taskyard.yaml");
    document.rename("/etc/taskyard/", "");
    document.run();
    document.rename("postgres://db/queue", document.database());
    document.rename("--http 10.0.0.1:7070", "--http 127.0.0.1:0");
    for peer in ["10.0.0.1:7070", "10.0.0.2:7070"] {
        document.rename(peer, "127.0.0.1:1");
    }
    document
        .succeed("(umask 077; taskyard user add peer --role read --users users.toml > peer-token)");
    document.run();
    Some(())
}

fn upgrade_steps(document: &mut DocumentRun) -> Option<()> {
    // The settings of the package.
    document.copy("deploy/systemd/taskyard.yaml", "taskyard.yaml");
    document.succeed("chmod 600 taskyard.yaml");
    document.serve();
    document.succeed("taskyard put mail hello");
    document.run();
    Some(())
}

fn security_steps(document: &mut DocumentRun) -> Option<()> {
    document.rename("--http 0.0.0.0:7070", "--http 127.0.0.1:0");
    document.rename("DNS:box7.example", "IP:127.0.0.1");
    document.rename("box7.example:7070", "{http}");
    document.run();
    document.run();
    Some(())
}
