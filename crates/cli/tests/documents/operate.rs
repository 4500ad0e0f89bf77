//! The pages about operation and security.

use crate::play::{Play, commands_on_a_server, plays};

plays! {
    backup: "docs/operate/backup.md", backup_steps;
    monitoring: "docs/operate/monitoring.md", commands_on_a_server;
    operating: "docs/operating.md", operating_steps;
    security: "docs/security.md", security_steps;
    upgrade: "docs/operate/upgrade.md", upgrade_steps;
}

fn backup_steps(play: &mut Play) -> Option<()> {
    play.serve();
    play.succeed("taskyard put mail hello");
    play.run();
    Some(())
}

fn operating_steps(play: &mut Play) -> Option<()> {
    play.with_postgres()?;
    // The settings of the page name this file.
    play.run();
    play.stop_server();
    play.copy("deploy/systemd/taskyard.yaml", "taskyard.yaml");
    play.token("token");
    play.succeed("chmod 600 taskyard.yaml");
    play.rename("/etc/taskyard/", "");
    play.run();
    play.rename("postgres://db/queue", play.database());
    play.rename("--http 10.0.0.1:7070", "--http 127.0.0.1:0");
    for peer in ["10.0.0.1:7070", "10.0.0.2:7070"] {
        play.rename(peer, "127.0.0.1:1");
    }
    play.succeed("(umask 077; taskyard user add peer --role read --users users.toml > peer-token)");
    play.run();
    Some(())
}

fn upgrade_steps(play: &mut Play) -> Option<()> {
    // The settings of the package.
    play.copy("deploy/systemd/taskyard.yaml", "taskyard.yaml");
    play.succeed("chmod 600 taskyard.yaml");
    play.rename("/etc/taskyard/", "");
    play.serve();
    play.succeed("taskyard put mail hello");
    play.run();
    Some(())
}

fn security_steps(play: &mut Play) -> Option<()> {
    play.rename("--http 0.0.0.0:7070", "--http 127.0.0.1:0");
    play.rename("DNS:box7.example", "IP:127.0.0.1");
    play.rename("box7.example:7070", "{http}");
    play.run();
    play.run();
    Some(())
}
