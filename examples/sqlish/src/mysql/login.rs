//! The handshake: `mysql_native_password`, by which a client proves that it knows a password without
//! sending it.

use std::collections::HashMap;
use std::io;

use sha1::{Digest, Sha1};

use super::capability;
use super::wire::Reader;

/// The one way to log in.
pub(super) const PLUGIN: &str = "mysql_native_password";

/// utf8mb4_general_ci.
pub(super) const CHARSET: u8 = 45;

/// Who may log in.
#[derive(Clone, Debug, Default)]
pub struct Users(HashMap<String, String>);

impl Users {
    /// These, each with a password; none at all is anybody, without a password.
    pub fn new(users: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(users.into_iter().collect())
    }

    /// Whether `answer` shows that a client knows the password of `user`. Without a password there is
    /// no answer.
    pub(super) fn admits(&self, user: &str, answer: &[u8], scramble: &Scramble) -> bool {
        let password = match self.0.get(user) {
            Some(password) => password.as_bytes(),
            None if self.0.is_empty() => b"",
            None => return false,
        };
        if password.is_empty() {
            return answer.is_empty();
        }
        let right = answer_to(scramble, password);
        // In constant time: every byte is looked at.
        let differs = |(a, b): (&u8, &u8)| a ^ b;
        answer.len() == right.len()
            && answer
                .iter()
                .zip(&right)
                .map(differs)
                .fold(0, |all, d| all | d)
                == 0
    }
}

/// What a client is to mix its password with. No zero byte, for it is sent as a string.
pub(super) type Scramble = [u8; 20];

/// # Errors
/// If the operating system has no randomness to give.
pub(super) fn new_scramble() -> io::Result<Scramble> {
    let mut scramble = [0; 20];
    getrandom::fill(&mut scramble).map_err(io::Error::other)?;
    Ok(scramble.map(|byte| b'0' + byte % 64))
}

/// SHA1(password) XOR SHA1(scramble, SHA1(SHA1(password))).
pub(super) fn answer_to(scramble: &Scramble, password: &[u8]) -> [u8; 20] {
    let once: [u8; 20] = Sha1::digest(password).into();
    let twice = Sha1::digest(once);
    let mixed: [u8; 20] = Sha1::new()
        .chain_update(scramble)
        .chain_update(twice)
        .finalize()
        .into();
    std::array::from_fn(|i| once[i] ^ mixed[i])
}

/// Writes the server's first packet.
pub(super) fn put_greeting(
    out: &mut Vec<u8>,
    id: u64,
    scramble: &Scramble,
    version: &str,
    offered: u32,
) {
    let [low_a, low_b, high_a, high_b] = offered.to_le_bytes();
    out.push(10);
    out.extend_from_slice(version.as_bytes());
    out.push(0);
    out.extend_from_slice(&(id as u32).to_le_bytes());
    out.extend_from_slice(&scramble[..8]);
    out.push(0);
    out.extend_from_slice(&[low_a, low_b, CHARSET]);
    out.extend_from_slice(&super::reply::AUTOCOMMIT.to_le_bytes());
    out.extend_from_slice(&[high_a, high_b, scramble.len() as u8 + 1]);
    out.extend_from_slice(&[0; 10]);
    out.extend_from_slice(&scramble[8..]);
    out.push(0);
    out.extend_from_slice(PLUGIN.as_bytes());
    out.push(0);
}

/// Whether the client, instead of the login, asks for TLS: what it sends ends where the user's name would
/// begin.
pub(super) fn asks_for_tls(packet: &[u8]) -> bool {
    let capabilities = Reader::new(packet).u32().unwrap_or_default();
    packet.len() == 32 && capabilities & capability::SSL != 0
}

/// What the client says to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer<'a> {
    pub(super) capabilities: u32,
    pub(super) user: &'a [u8],
    pub(super) answer: &'a [u8],
    pub(super) database: Option<&'a [u8]>,
    /// Which way of logging in the answer is for; `None`: that of the greeting.
    pub(super) plugin: Option<&'a [u8]>,
}

impl<'a> Answer<'a> {
    /// `None`: it is none, or says otherwise than the connection whether there is TLS.
    pub(super) fn read(packet: &'a [u8], by_tls: bool) -> Option<Self> {
        let mut reader = Reader::new(packet);
        let capabilities = reader.u32()?;
        let says_tls = capabilities & capability::SSL != 0;
        if capabilities & capability::PROTOCOL_41 == 0 || says_tls != by_tls {
            return None;
        }
        let has = |bit| capabilities & bit != 0;
        let _largest_packet = reader.u32()?;
        let _charset = reader.u8()?;
        reader.bytes(23)?;
        let user = reader.nul_bytes();
        let answer = if has(capability::PLUGIN_AUTH_LENENC) {
            reader.lenenc_bytes()?
        } else if has(capability::SECURE_CONNECTION) {
            let length = reader.u8()?;
            reader.bytes(usize::from(length))?
        } else {
            reader.nul_bytes()
        };
        let database = has(capability::CONNECT_WITH_DB)
            .then(|| reader.nul_bytes())
            .filter(|name| !name.is_empty());
        let plugin = has(capability::PLUGIN_AUTH)
            .then(|| reader.nul_bytes())
            .filter(|name| !name.is_empty());
        Some(Self {
            capabilities: capabilities & capability::OFFERED,
            user,
            answer,
            database,
            plugin,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<_> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        let pairs = digits.chunks(2);
        pairs.map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
    }

    #[test]
    fn the_answer_is_made_as_mysql_makes_it() {
        // Computed with Python's hashlib.
        let scramble = *b"01234567890123456789";
        assert_eq!(answer_to(&scramble, b"secret").to_vec(), hex(EXPECTED));
    }

    #[test]
    fn only_the_right_password_admits_and_only_those_who_have_one() {
        let scramble = new_scramble().expect("there is randomness");
        let anybody = Users::default();
        assert!(anybody.admits("ann", b"", &scramble));
        assert!(!anybody.admits("ann", &answer_to(&scramble, b"x"), &scramble));
        let users = Users::new([("ann".to_owned(), "secret".to_owned())]);
        assert!(users.admits("ann", &answer_to(&scramble, b"secret"), &scramble));
        for wrong in [&b""[..], b"x", &answer_to(&scramble, b"Secret"), &[0; 21]] {
            assert!(!users.admits("ann", wrong, &scramble));
        }
        assert!(!users.admits("bob", b"", &scramble));
        let other = new_scramble().expect("there is randomness");
        assert!(!users.admits("ann", &answer_to(&other, b"secret"), &scramble));
    }

    const EXPECTED: &str = "7abe1a8776b59e931059451f81e596a60dbbf7a8";
}
