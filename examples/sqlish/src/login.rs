//! Login by challenge: the client proves that it knows the secret without sending it.
//!
//! The answer to a nonce is the HMAC-SHA-256 of its text under the secret, in hexadecimal, which a
//! shell can do too: `printf %s "$NONCE" | openssl dgst -sha256 -hmac "$SECRET"`.

use std::fmt::Write;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::SqlError;

/// A `LOGIN` that has not been answered yet.
#[derive(Debug)]
pub(crate) struct Challenge {
    pub(crate) user: String,
    /// 128 random bits, in hexadecimal. Used for one answer, right or wrong.
    pub(crate) nonce: String,
}

impl Challenge {
    /// # Errors
    /// If the operating system has no randomness to give.
    pub(crate) fn new(user: &str) -> Result<Self, SqlError<'static>> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|_| SqlError::Internal("no randomness for a challenge"))?;
        Ok(Self {
            user: user.to_owned(),
            nonce: hex(&random),
        })
    }

    /// Compares in constant time.
    pub(crate) fn is_answered_by(&self, answer: &str, secret: &str) -> bool {
        match unhex(answer) {
            Some(answer) => mac(&self.nonce, secret).verify_slice(&answer).is_ok(),
            None => false,
        }
    }
}

/// What a client that knows `secret` answers to `nonce`.
pub(crate) fn answer(nonce: &str, secret: &str) -> String {
    hex(&mac(nonce, secret).finalize().into_bytes())
}

fn mac(nonce: &str, secret: &str) -> Hmac<Sha256> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(nonce.as_bytes());
    mac
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}"); // a String takes everything
            text
        })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    if !odd.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs
        .iter()
        .map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_the_hmac_that_openssl_computes() {
        // printf %s nonce | openssl dgst -sha256 -hmac secret
        assert_eq!(
            answer("nonce", "secret"),
            "042df25f9d1981866dfcab8bce6f4e3721168616b0a02d94a879c29e9f710b58"
        );
    }

    #[test]
    fn only_the_answer_to_this_challenge_is_right() {
        let (one, two) = match (Challenge::new("ann"), Challenge::new("ann")) {
            (Ok(one), Ok(two)) => (one, two),
            failed => panic!("{failed:?}"),
        };
        assert!(one.is_answered_by(&answer(&one.nonce, "secret"), "secret"));
        assert!(one.is_answered_by(&answer(&one.nonce, "secret").to_uppercase(), "secret"));
        assert!(!one.is_answered_by(&answer(&two.nonce, "secret"), "secret"));
        assert!(!one.is_answered_by(&answer(&one.nonce, "guess"), "secret"));
        for nonsense in ["", "0", "00", "zz", "é"] {
            assert!(!one.is_answered_by(nonsense, "secret"), "{nonsense}");
        }
    }
}
