//! Where Redis is, as one text: which servers, as whom, and how they belong together.
//!
//! ```text
//! redis://[user[:password]@]host[:port][/db]           one server, or one of a Cluster
//! redis://host[:port],host[:port],…                    a Cluster: any of its servers, the others are found
//! redis+sentinel://host[:port],host[:port],…/name[/db] the server that Sentinel calls the primary of that name
//! redis+unix:///path/to/socket                         one server on this machine
//! ```
//!
//! `rediss` in place of `redis` means TLS. [`OPTIONS`] may follow a `?`. Passwords are never shown: neither `Debug` nor
//! `Display` nor an error message has them.

use super::secret::{Credentials, Secret};
use std::{fmt, path::PathBuf};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// More than any Redis has.
const DATABASES_MAX: u32 = 65_535;

/// What may stand behind the `?`, as `name=value`.
pub const OPTIONS: &str = "user, password, db";

/// Where Redis is, and how to get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub place: Place,
    pub credentials: Credentials,
    /// For the sentinels themselves.
    pub sentinel_credentials: Credentials,
    pub db: u32,
    pub tls: Option<Tls>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// One server; if it belongs to a Cluster, the Cluster.
    One(Endpoint),
    Cluster(Vec<Endpoint>),
    Sentinel {
        sentinels: Vec<Endpoint>,
        name: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Files in PEM form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Trusted in place of what the system trusts.
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// What an operator does not write into an address: the table `[redis]` of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub tls: Tls,
    pub password: Option<Secret>,
    pub sentinel: Credentials,
}

impl Address {
    /// Reads one text. What is wrong with it is said without its secrets.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) =
            text.split_once("://").ok_or("write where Redis is as for example \"redis://127.0.0.1:6379\"")?;
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        // Else the message about what is left would show a part of the password.
        if options.contains('@') {
            return Err("a ? in a user or password is written %3F, and an @ behind the ? %40".into());
        }
        let (read, tls): (Reader, _) = match scheme {
            "redis" | "valkey" => (servers, false),
            "rediss" | "valkeys" => (servers, true),
            "redis+sentinel" => (sentinels, false),
            "rediss+sentinel" => (sentinels, true),
            "redis+unix" | "unix" => (socket, false),
            _ => {
                return Err(format!(
                    "{scheme:?} is no way to reach Redis; write redis, rediss (with TLS), \
                     redis+sentinel, rediss+sentinel or redis+unix in front of ://"
                ));
            }
        };
        let mut address = Self { tls: tls.then(Tls::default), ..read(rest)? };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            address.set(option)?;
        }
        address.checked()
    }

    /// Reads several texts, each of which names servers of one Cluster.
    pub fn parse_all<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut all = texts.into_iter().flat_map(split_addresses).map(|text| Self::parse(text.trim()));
        let first = all.next().ok_or("name at least one server")??;
        all.try_fold(first, |all, next| all.and(next?))
    }

    /// With what there is for its kind: files where it has TLS, the login of sentinels where it has some.
    pub fn with(mut self, access: &Access) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.clone_from(&access.tls);
        }
        if let Place::Sentinel { .. } = self.place {
            self.sentinel_credentials.clone_from(&access.sentinel);
        }
        self.credentials.password = self.credentials.password.or_else(|| access.password.clone());
        self
    }

    /// What of it this address has no use for, and what else is wrong with the two.
    pub fn check(&self, access: &Access) -> Result<(), &'static str> {
        let Tls { ca, cert, key } = &access.tls;
        if cert.is_some() != key.is_some() {
            return Err("cert and key belong together: give both or neither");
        }
        if self.tls.is_none() && (ca.is_some() || cert.is_some()) {
            return Err("ca, cert and key are for TLS: write rediss in place of redis in the address");
        }
        if access.sentinel != Credentials::default() && !matches!(self.place, Place::Sentinel { .. }) {
            return Err("sentinel_user and the passwords of sentinels are for redis+sentinel://");
        }
        if access.password.is_some() && self.credentials.password.is_some() {
            return Err("the address and password_file both give a password");
        }
        if self.credentials.user.is_some() && self.credentials.password.is_none() && access.password.is_none() {
            return Err("there is a user without a password");
        }
        Ok(())
    }

    fn of_place(place: Place) -> Self {
        let (credentials, sentinel_credentials) = Default::default();
        Self { place, credentials, sentinel_credentials, db: 0, tls: None }
    }

    /// The same Cluster, with more servers to begin with.
    fn and(self, other: Self) -> Result<Self, String> {
        if [&self, &other].iter().any(|address| matches!(address.place, Place::Sentinel { .. })) {
            return Err("several addresses name the servers of a Cluster, so none can be of \
                        Sentinel; put all sentinels into one, divided by commas"
                .into());
        }
        if self.tls != other.tls {
            return Err("all servers of a Cluster are reached in the same way: with TLS or without".into());
        }
        if other.credentials != Credentials::default() && self.credentials != other.credentials {
            return Err("all servers of a Cluster take the same user and password".into());
        }
        let servers = [self.place.endpoints(), other.place.endpoints()].concat();
        Self { place: Place::Cluster(servers), db: self.db.max(other.db), ..self }.checked()
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let value = decoded(value)?;
        if value.is_empty() {
            return Err(format!("the option {name:?} has no value"));
        }
        match name {
            "user" => self.credentials.user = Some(value),
            "password" => self.credentials.password = Some(Secret::Text(value)),
            "db" => self.db = database(&value)?,
            _ => return Err(format!("unknown option {name:?}; there are {OPTIONS}; files are named in [redis]")),
        }
        Ok(())
    }

    fn checked(self) -> Result<Self, String> {
        if let Place::Cluster(servers) = &self.place {
            if self.db != 0 {
                return Err(format!("a Cluster has only database 0, not {}", self.db));
            }
            if servers.iter().any(|server| matches!(server, Endpoint::Unix(_))) {
                return Err("the servers of a Cluster are reached by host and port".into());
            }
        }
        Ok(self)
    }
}

impl Place {
    /// Those that were named.
    pub fn endpoints(&self) -> &[Endpoint] {
        match self {
            Self::One(endpoint) => std::slice::from_ref(endpoint),
            Self::Cluster(endpoints) | Self::Sentinel { sentinels: endpoints, .. } => endpoints,
        }
    }
}

/// Of what stands between the scheme and the options.
type Reader = fn(&str) -> Result<Address, String>;

impl Endpoint {
    /// A server that this one has named; without a host it is where this one is.
    pub(super) fn sibling(&self, host: &str, port: u16) -> Option<Self> {
        let host = match (host, self) {
            ("" | "?", Self::Tcp { host, .. }) => host,
            ("" | "?", Self::Unix(_)) => return None,
            (host, _) => host,
        };
        Some(Self::Tcp { host: host.into(), port })
    }
}

/// Commas divide servers as well as whole addresses.
fn split_addresses(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices(',') {
        let scheme = text[at + 1..].trim_start().split_once("://").map(|(scheme, _)| scheme);
        if scheme.is_some_and(|scheme| scheme.chars().all(|c| c.is_ascii_alphabetic() || c == '+')) {
            parts.push(&text[begin..at]);
            begin = at + 1;
        }
    }
    parts.push(&text[begin..]);
    parts
}

fn socket(rest: &str) -> Result<Address, String> {
    let path = decoded(rest)?;
    if !path.starts_with('/') {
        return Err("the path of a socket begins at the root: redis+unix:///run/redis.sock".into());
    }
    Ok(Address::of_place(Place::One(Endpoint::Unix(path.into()))))
}

fn servers(rest: &str) -> Result<Address, String> {
    hosts(rest, REDIS_PORT, |mut servers, _| {
        Ok(if servers.len() == 1 { Place::One(servers.remove(0)) } else { Place::Cluster(servers) })
    })
}

fn sentinels(rest: &str) -> Result<Address, String> {
    hosts(rest, SENTINEL_PORT, |sentinels, path| {
        let name = path.next().ok_or("name what the sentinels watch: redis+sentinel://host:26379/mymaster")?;
        Ok(Place::Sentinel { sentinels, name: decoded(name)? })
    })
}

/// `[login@]host,host…[/path][/db]`
fn hosts(
    rest: &str, port: u16, place: impl FnOnce(Vec<Endpoint>, &mut dyn Iterator<Item = &str>) -> Result<Place, String>,
) -> Result<Address, String> {
    let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
    if login.contains('@') {
        return Err("an @ in a user or password is written %40; one login, in front of the first \
                    host, is for all"
            .into());
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let endpoints = hosts.split(',').map(|host| endpoint(host.trim(), port)).collect::<Result<_, _>>()?;
    let mut path = path.split('/').filter(|part| !part.is_empty());
    let place = place(endpoints, &mut path)?;
    let db = path.next().map_or(Ok(0), database)?;
    if path.next().is_some() {
        return Err("there is more than a database behind the host".into());
    }
    Ok(Address { db, credentials: credentials(login)?, ..Address::of_place(place) })
}

fn credentials(login: &str) -> Result<Credentials, String> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let given = |text: &str| decoded(text).map(|text| Some(text).filter(|text| !text.is_empty()));
    Ok(Credentials { user: given(user)?, password: given(password)?.map(Secret::Text) })
}

fn endpoint(text: &str, default_port: u16) -> Result<Endpoint, String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("an IPv6 address ends with a ]: [::1]:6379")?;
            (host, rest.strip_prefix(':'))
        }
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
    if host.is_empty() || !host.chars().all(good) {
        return Err(format!("{host:?} is not the name or address of a host"));
    }
    let port = match port.map(|port| (port, port.parse())) {
        None => default_port,
        Some((_, Ok(port @ 1..))) => port,
        Some((port, _)) => return Err(format!("{port:?} is not a port: write 1 to 65535")),
    };
    Ok(Endpoint::Tcp { host: host.into(), port })
}

fn database(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number <= DATABASES_MAX);
    number.ok_or_else(|| format!("{text:?} is not the number of a database"))
}

/// `%40` means `@`. The text itself may be a secret, so it is not in the message.
fn decoded(text: &str) -> Result<String, String> {
    const BAD_PERCENT: &str = "a % begins two hexadecimal digits; a % of its own is written %25";
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or(BAD_PERCENT)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_hex);
        bytes.push(byte.ok_or(BAD_PERCENT)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| BAD_PERCENT.into())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Without secrets: for logs and the banner.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.tls.is_some() { "s" } else { "" };
        let kind = match &self.place {
            Place::One(Endpoint::Unix(_)) => "+unix",
            Place::One(_) | Place::Cluster(_) => "",
            Place::Sentinel { .. } => "+sentinel",
        };
        write!(f, "redis{s}{kind}://")?;
        if let Some(user) = &self.credentials.user {
            write!(f, "{user}@")?;
        }
        let endpoints: Vec<_> = self.place.endpoints().iter().map(ToString::to_string).collect();
        f.write_str(&endpoints.join(","))?;
        if let Place::Sentinel { name, .. } = &self.place {
            write!(f, "/{name}")?;
        }
        match (self.db, &self.place) {
            (0, _) => Ok(()),
            (db, Place::One(Endpoint::Unix(_))) => write!(f, "?db={db}"),
            (db, _) => write!(f, "/{db}"),
        }
    }
}
