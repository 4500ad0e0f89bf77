//! Lists the addresses at which a server can be reached.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use taskyard_server::Server;

/// The maximum number of addresses that are shown.
const SHOWN_MAX: usize = 8;

/// Where a server listens, for the start message: one URL or, if it listens on every address of the machine, all of them.
pub fn line(server: &Server) -> String {
    let bound = server.address();
    if !bound.ip().is_unspecified() {
        return server.url();
    }
    let mut urls = vec![server.url()];
    let others = addresses(bound.is_ipv4()).into_iter();
    // A certificate may have one name for all of them.
    for url in others.map(|ip| server.url_at(ip)) {
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls.truncate(SHOWN_MAX);
    format!("every address of this machine ({bound}): {}", urls.join(" "))
}

/// The addresses of this machine that other machines may reach; empty where the system does not list them.
fn addresses(only_v4: bool) -> Vec<IpAddr> {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let mut found = v4_addresses(&read("/proc/net/fib_trie"));
    if !only_v4 {
        found.extend(v6_addresses(&read("/proc/net/if_inet6")));
    }
    found
}

/// The local addresses in the kernel's routing table: a line with the address, then one with its type.
fn v4_addresses(table: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut last = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL"
            && let Some(ip) = last.filter(|ip| !ip.is_loopback())
            && !found.contains(&ip.into())
        {
            found.push(ip.into());
        }
    }
    found
}

/// The addresses in the kernel's list of interfaces, without link-local ones.
fn v6_addresses(list: &str) -> Vec<IpAddr> {
    let words = list.lines().filter_map(|line| line.split_whitespace().next());
    let ips = words.filter_map(|word| u128::from_str_radix(word, 16).ok()).map(Ipv6Addr::from_bits);
    ips.filter(|ip| !ip.is_loopback() && !ip.is_unicast_link_local()).map(IpAddr::V6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_found() {
        let table = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.5\n\
                     \x20       /32 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\nMain:\n     |-- 10.0.0.5\n\
                     \x20       /32 host LOCAL\n";
        assert_eq!(v4_addresses(table), [IpAddr::from([10, 0, 0, 5])]);
        let list = "00000000000000000000000000000001 01 80 10 80 lo\n\
                    fe800000000000000000000000000001 02 40 20 80 eth0\n\
                    20010db8000000000000000000000007 02 40 00 80 eth0\n";
        assert_eq!(v6_addresses(list), ["2001:db8::7".parse::<IpAddr>().unwrap()]);
        assert_eq!((v4_addresses("?"), v6_addresses("?")), (vec![], vec![]));
    }
}
