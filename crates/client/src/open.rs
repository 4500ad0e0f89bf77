//! Opens a client by the URL of its queue.

#[cfg(feature = "embedded")]
use taskyard_store::OpenOptions;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::http::Http;
use crate::iproto::Iproto;

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

/// What opens the URL; refused if this program was not built with it.
fn opener_of(url: &str) -> Result<Opener> {
    let name = url.trim().split(':').next().unwrap_or_default().to_ascii_lowercase();
    match SCHEMES.iter().find(|scheme| scheme.name == name) {
        None => Err(Error::UnknownScheme(name)),
        Some(Scheme { needs: Some((feature, false)), .. }) => {
            Err(Error::MissingFeature { what: format!("a URL with {name}:"), feature })
        }
        Some(scheme) => Ok(scheme.opener),
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
        match opener_of(url)? {
            Opener::Http => Ok(Client::new(Http::new(url)?)),
            Opener::Iproto => Ok(Client::new(Iproto::new(url)?)),
            #[cfg(feature = "embedded")]
            Opener::Store => Client::open_with(url, &OpenOptions::default()).await,
            #[cfg(not(feature = "embedded"))]
            Opener::Store => Err(Error::UnknownScheme(url.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheme_is_named() {
        for (url, name) in [("nowhere:", "nowhere"), ("127.0.0.1:7070", "127.0.0.1"), ("", "")] {
            let error = opener_of(url).unwrap_err();
            assert!(matches!(&error, Error::UnknownScheme(found) if found == name), "{error}");
        }
    }

    /// A password in a URL is not part of the message.
    #[test]
    fn every_scheme_is_built_in_or_names_its_feature() {
        for scheme in &SCHEMES {
            let opened = opener_of(&format!("{}://ann:secret@host/", scheme.name));
            match scheme.needs {
                Some((feature, false)) => {
                    let error = opened.unwrap_err().to_string();
                    assert!(error.contains(&format!("the feature `{feature}`")), "{error}");
                    assert!(!error.contains("secret"), "{error}");
                }
                _ => assert_eq!(opened.unwrap(), scheme.opener, "{}", scheme.name),
            }
        }
    }
}
