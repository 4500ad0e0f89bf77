//! Interruptions at each step of a firing of a schedule, on a single Redis and on a cluster, where a firing has more steps.

taskyard_testkit::firing_suite!(taskyard_testkit::redis::SharedRedis);

mod on_a_cluster {
    use std::net::SocketAddr;

    use taskyard_core::TubeName;
    use taskyard_store_redis::Redis;
    use taskyard_testkit::faulty_proxy::{Protocol, Target};
    use taskyard_testkit::redis::{DURABLE, RedisInstance, SharedRedis, free_port, program};
    use taskyard_testkit::storm::StormDatabase;
    use taskyard_testkit::suite::firings;
    use taskyard_testkit::{LossyPath, OwnServer, Request, SharedDatabase};

    // A node takes two seconds to start, so its kills are left to the cases of a single Redis.
    #[test]
    fn a_server_that_loses_its_connection_fires_each_time_once() {
        firings::a_server_that_loses_its_connection_fires_each_time_once::<OneNode>();
    }

    #[test]
    fn a_killed_server_leaves_each_time_to_another() {
        firings::a_killed_server_leaves_each_time_to_another::<OneNode>();
    }

    #[test]
    fn a_server_that_was_overtaken_fires_nothing() {
        firings::a_server_that_was_overtaken_fires_nothing::<OneNode>();
    }

    /// A cluster of one node: a server does what it does on several, and all its steps are on one connection.
    struct OneNode(RedisInstance);

    impl OneNode {
        fn new() -> Option<Self> {
            let bus = free_port().to_string();
            let settings =
                [DURABLE, &["--cluster-enabled", "yes", "--cluster-port", &bus]].concat();
            let node = OneNode(RedisInstance::with(program()?, &settings));
            assert_eq!(node.0.talk(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), "OK");
            node.wait_until_whole();
            Some(node)
        }

        fn wait_until_whole(&self) {
            while !self.0.talk(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {}
        }
    }

    impl OwnServer for OneNode {
        fn url(&self) -> String {
            self.url_by(SocketAddr::from(([127, 0, 0, 1], self.0.port())))
        }

        fn kill(&self) {
            self.0.kill();
        }

        fn start(&self) {
            self.0.start();
            self.wait_until_whole();
        }

        fn audit(&self, tube: &TubeName) {
            OwnServer::audit(&self.0, tube);
        }
    }

    impl StormDatabase for OneNode {
        fn steady() -> Option<Self> {
            OneNode::new()
        }

        fn freeze(&self) {
            self.0.freeze();
        }

        fn thaw(&self) {
            self.0.thaw();
        }

        fn close_connections(&self) {
            self.0.close_connections();
        }

        fn target(&self) -> Target {
            self.0.target()
        }

        fn url_by(&self, proxy: SocketAddr) -> String {
            format!("redis+cluster://{proxy}?prefix=kill")
        }

        fn server_count(&self) -> usize {
            self.0.server_count()
        }

        fn audit_sessions(&self) {
            self.0.audit_sessions();
        }

        fn audit_semaphores(&self) {
            self.0.audit_semaphores();
        }
    }

    impl SharedDatabase for OneNode {
        type Backend = Redis;
        type Part = String;
        type Server = OneNode;
        const LEASES_INCREASE: bool = SharedRedis::LEASES_INCREASE;
        const TIMES_ARE_DOUBLES: bool = SharedRedis::TIMES_ARE_DOUBLES;
        const PROTOCOL: Protocol =
            Protocol { shows_port: true, ..<SharedRedis as SharedDatabase>::PROTOCOL };

        fn is_installed() -> bool {
            SharedRedis::is_installed()
        }

        fn part() -> String {
            SharedRedis::part()
        }

        fn url(part: &String) -> String {
            SharedRedis::url(part)
        }

        fn server() -> Option<OneNode> {
            OneNode::new()
        }

        fn lossy_path() -> LossyPath<String> {
            SharedRedis::lossy_path()
        }

        fn word_of(request: Request) -> &'static [u8] {
            SharedRedis::word_of(request)
        }

        fn audit(part: &String) {
            <SharedRedis as SharedDatabase>::audit(part);
        }

        fn server_count(part: &String) -> usize {
            <SharedRedis as SharedDatabase>::server_count(part)
        }

        fn write_format(part: &String, format: u32) {
            SharedRedis::write_format(part, format);
        }
    }
}
