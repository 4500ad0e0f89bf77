//! Opens a client by the URL of its queue.

#[cfg(feature = "embedded")]
use taskyard_store::OpenOptions;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::http::Http;
use crate::iproto::Iproto;
use crate::url::without_password;

/// What opens a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opener {
    Http,
    Iproto,
    Store,
}

/// A scheme of URLs.
struct Scheme {
    name: &'static str,
    opener: Opener,
    /// The feature that it needs, and whether this program was built with it.
    needs: Option<(&'static str, bool)>,
}

const fn scheme(name: &'static str, opener: Opener, needs: Option<(&'static str, bool)>) -> Scheme {
    Scheme { name, opener, needs }
}

const POSTGRES: Option<(&str, bool)> = Some(("postgres", cfg!(feature = "postgres")));
const REDIS: Option<(&str, bool)> = Some(("redis", cfg!(feature = "redis")));
const TARANTOOL: Option<(&str, bool)> = Some(("tarantool", cfg!(feature = "tarantool")));
const TLS: Option<(&str, bool)> = Some(("tls", cfg!(feature = "tls")));

/// All schemes.
const SCHEMES: [Scheme; 14] = [
    scheme("http", Opener::Http, None),
    scheme("https", Opener::Http, TLS),
    scheme("iproto", Opener::Iproto, None),
    scheme("iprotos", Opener::Iproto, TLS),
    scheme("memory", Opener::Store, Some(("embedded", cfg!(feature = "embedded")))),
    scheme("sqlite", Opener::Store, Some(("sqlite", cfg!(feature = "sqlite")))),
    scheme("postgres", Opener::Store, POSTGRES),
    scheme("postgresql", Opener::Store, POSTGRES),
    scheme("redis", Opener::Store, REDIS),
    scheme("rediss", Opener::Store, REDIS),
    scheme("redis+cluster", Opener::Store, REDIS),
    scheme("rediss+cluster", Opener::Store, REDIS),
    scheme("tarantool", Opener::Store, TARANTOOL),
    scheme("tarantool+queue", Opener::Store, TARANTOOL),
];

/// What opens the URL, and the URL without spaces around it and with its scheme in lower case; refused if this program was
/// not built with it.
fn opener_of(url: &str, schemes: &[Scheme]) -> Result<(Opener, String)> {
    let url = url.trim();
    let (name, rest) = url.split_at(url.find(':').unwrap_or(url.len()));
    let name = name.to_ascii_lowercase();
    match schemes.iter().find(|scheme| scheme.name == name) {
        None => Err(Error::UnknownScheme(without_password(&name))),
        Some(Scheme { needs: Some((feature, false)), .. }) => {
            Err(Error::MissingFeature { what: format!("a URL with {name}:"), feature })
        }
        Some(scheme) => Ok((scheme.opener, name + rest)),
    }
}

impl Client {
    /// Opens the queue at this URL:
    ///
    /// | URL | queue | feature of this crate |
    /// |---|---|---|
    /// | `http://host:7070`, `https://host` | a server over HTTP | `tls` for `https` |
    /// | `iproto://user:password@host:3301`, `iprotos://…` | a server over iproto | `tls` for `iprotos` |
    /// | `memory:` | in this process, lost at its end | `embedded` |
    /// | `sqlite:DIR` | in this process, on disk, for this process alone | `sqlite` |
    /// | `postgres://…`, `redis://…`, `tarantool://…` | in this process, its tasks in a database | `postgres`, `redis`, `tarantool` |
    ///
    /// A client of a server connects at its first call. [`Client::with_token`] sets the access token of a server.
    ///
    /// ```
    /// # async fn example() -> Result<(), taskyard::Error> {
    /// use std::time::Duration;
    ///
    /// let client = taskyard::Client::open("memory:").await?;
    /// client.put("mail", "hello").await?;
    /// let task = client.take("mail", Duration::ZERO).await?.expect("there is one");
    /// assert_eq!(task.data::<String>()?, "hello");
    /// client.ack(&task).await?;
    /// client.close().await
    /// # }
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(example()).unwrap();
    /// ```
    pub async fn open(url: &str) -> Result<Self> {
        let (opener, url) = opener_of(url, &SCHEMES)?;
        match opener {
            Opener::Http => Ok(Client::new(Http::new(&url)?)),
            Opener::Iproto => Ok(Client::new(Iproto::new(&url)?)),
            #[cfg(feature = "embedded")]
            Opener::Store => Client::open_with(&url, &OpenOptions::default()).await,
            #[cfg(not(feature = "embedded"))]
            Opener::Store => {
                Err(Error::MissingFeature { what: "a store".into(), feature: "embedded" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_is_named() {
        for (url, name) in [
            ("nowhere:", "nowhere"),
            ("127.0.0.1:7070", "127.0.0.1"),
            ("secret@host", "***@host"),
            ("", ""),
        ] {
            let error = opener_of(url, &SCHEMES).unwrap_err();
            assert!(matches!(&error, Error::UnknownScheme(found) if found == name), "{error}");
        }
    }

    /// A password in a URL is not part of the message.
    #[test]
    fn a_scheme_that_was_not_built_names_its_feature() {
        let schemes = [scheme("postgres", Opener::Store, Some(("postgres", false)))];
        let error = opener_of("postgres://ann:secret@host/", &schemes).unwrap_err().to_string();
        assert!(error.contains("the feature `postgres`"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn a_scheme_may_be_written_in_any_case() {
        let schemes = [scheme("postgres", Opener::Store, Some(("postgres", true)))];
        let opened = opener_of(" POSTGRES://ann:Secret@Host ", &schemes).unwrap();
        assert_eq!(opened, (Opener::Store, "postgres://ann:Secret@Host".into()));
    }

    /// Malformed URLs were shown with their passwords.
    #[tokio::test]
    async fn no_message_shows_a_password() {
        for url in [
            "http://ann:secret@",
            "http://ann:secret@a b",
            "iproto://ann:secret@queue:port",
            "iproto://ann:secret@queue/path",
            "memory:ann:secret@host",
            "nowhere://ann:secret@host",
            "ann-secret@host",
        ] {
            let error = Client::open(url).await.map(drop).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }
}
