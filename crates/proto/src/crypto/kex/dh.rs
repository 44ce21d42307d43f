//! Diffie-Hellman modulo a prime: RFC 4253 section 8, with the groups of RFC 3526 (as RFC 8268 uses them) and those
//! that a server proposes (RFC 4419).

use aws_lc_rs::rand;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use zeroize::Zeroizing;

use super::KexError;

/// The smallest prime that we accept from a server, in bits (RFC 8270).
pub(super) const MIN_BITS: u32 = 2048;
/// The largest prime that we accept, in bits: OpenSSH's `DH_GRP_MAX`. It bounds what a server can make us compute.
pub(super) const MAX_BITS: u32 = 8192;

/// Returns the bits of prime to request for keys of `strength` bytes: OpenSSH's `dh_estimate` (NIST SP 800-57, and RFC
/// 4419 section 3's largest).
pub(super) fn estimate(strength: usize) -> u32 {
    match strength * 8 {
        0..=112 => MIN_BITS,
        113..=128 => 3072,
        129..=192 => 7680,
        _ => MAX_BITS,
    }
}

/// The bits of a secret exponent: twice the 256 bits of the strongest derived key (RFC 4419 section 6.2). In a group of
/// a safe prime, that is as strong as an exponent of the prime's size, and several times faster.
const EXPONENT_BITS: u32 = 512;

/// A secret exponent and its group. The exponent is wiped when dropped.
pub(super) struct Exponent {
    group: Group,
    exponent: Zeroizing<BoxedUint>,
}

impl Exponent {
    /// Generates a random exponent.
    pub(super) fn generate(group: Group) -> Result<Self, KexError> {
        let mut bytes = Zeroizing::new([0; EXPONENT_BITS as usize / 8]);
        rand::fill(&mut bytes[..]).map_err(|_| KexError::Local)?;
        // The top bit is set, so that the exponent is neither 0 nor 1.
        bytes[0] |= 0x80;
        let exponent = Zeroizing::new(BoxedUint::from_be_slice_truncated(&bytes[..], EXPONENT_BITS));
        Ok(Self { group, exponent })
    }

    /// Returns the group.
    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// Returns our public value, big-endian: the generator raised to the exponent.
    pub(super) fn public(&self) -> Box<[u8]> {
        self.raise(self.group.generator.clone()).to_be_bytes()
    }

    /// Returns the secret shared with the owner of the public value `theirs`, both big-endian. Fails unless 1 <
    /// `theirs` < p - 1: other values give secrets that anyone can guess.
    pub(super) fn agree(&self, theirs: &[u8]) -> Result<Zeroizing<Box<[u8]>>, KexError> {
        let theirs = self.group.element(theirs).ok_or(KexError::BadPublicKey)?;
        Ok(Zeroizing::new(self.raise(theirs).to_be_bytes()))
    }

    /// Raises `base`, in time that depends only on the group and the exponent's size.
    fn raise(&self, base: BoxedUint) -> Zeroizing<BoxedUint> {
        let power =
            BoxedMontyForm::new(base, &self.group.modulus).pow_bounded_exp(&self.exponent, EXPONENT_BITS);
        Zeroizing::new(Zeroizing::new(power).retrieve())
    }
}

/// A prime modulus and a generator.
#[derive(Clone)]
pub(super) struct Group {
    modulus: BoxedMontyParams,
    generator: BoxedUint,
}

impl Group {
    pub(super) fn group14() -> Self {
        Self::from_hex(GROUP_14)
    }

    pub(super) fn group16() -> Self {
        Self::from_hex(GROUP_16)
    }

    pub(super) fn group18() -> Self {
        Self::from_hex(GROUP_18)
    }

    /// Returns a group that a server proposed, from its big-endian prime and generator (RFC 4419 section 3). As in
    /// OpenSSH, the prime's size and parity and the generator's range are checked. That it is a safe prime is trusted:
    /// the host key's signature shows who claims it.
    pub(super) fn from_proposal(prime: &[u8], generator: &[u8]) -> Result<Self, KexError> {
        let bytes = u32::try_from(prime.len()).unwrap_or(u32::MAX);
        let bits = bytes
            .saturating_mul(8)
            .saturating_sub(prime.first().map_or(0, |b| b.leading_zeros()));
        if !(MIN_BITS..=MAX_BITS).contains(&bits) {
            return Err(KexError::GroupSize { bits });
        }
        Self::new(prime, generator).ok_or(KexError::BadGroup)
    }

    /// Returns the prime, big-endian.
    pub(super) fn prime(&self) -> Box<[u8]> {
        self.modulus.modulus().as_ref().to_be_bytes()
    }

    /// Returns the generator, big-endian.
    pub(super) fn generator(&self) -> Box<[u8]> {
        self.generator.to_be_bytes()
    }

    fn from_hex(hex: &str) -> Self {
        let digits = hex.as_bytes().chunks_exact(2);
        let prime: Vec<u8> = digits
            .map(|pair| {
                pair.iter().fold(0, |byte, &digit| {
                    byte << 4 | (digit as char).to_digit(16).unwrap_or(0) as u8
                })
            })
            .collect();
        Self::new(&prime, &[2]).expect("2 generates the groups of RFC 3526, and their primes are odd")
    }

    /// Returns `None` unless the prime is odd and 1 < g < p - 1.
    fn new(prime: &[u8], generator: &[u8]) -> Option<Self> {
        let prime = BoxedUint::from_be_slice_vartime(prime);
        let modulus = BoxedMontyParams::new_vartime(Odd::new(prime).into_option()?);
        let mut group = Self {
            generator: BoxedUint::zero_with_precision(modulus.bits_precision()),
            modulus,
        };
        group.generator = group.element(generator)?;
        Some(group)
    }

    /// Returns the number, if it is between 1 and p - 1 (exclusive).
    fn element(&self, bytes: &[u8]) -> Option<BoxedUint> {
        let precision = self.modulus.bits_precision();
        let number = BoxedUint::from_be_slice(bytes, precision).ok()?;
        let one = BoxedUint::one_with_precision(precision);
        let last = self.modulus.modulus().as_ref().wrapping_sub(&one);
        (number > one && number < last).then_some(number)
    }
}

/// RFC 3526 section 3: 2^2048 - 2^1984 - 1 + 2^64 * (floor(2^1918 pi) + 124476).
const GROUP_14: &str = "\
     ffffffffffffffffc90fdaa22168c234c4c6628b80dc1cd129024e088a67cc74020bbea63b139b22514a08798e3404dd\
     ef9519b3cd3a431b302b0a6df25f14374fe1356d6d51c245e485b576625e7ec6f44c42e9a637ed6b0bff5cb6f406b7ed\
     ee386bfb5a899fa5ae9f24117c4b1fe649286651ece45b3dc2007cb8a163bf0598da48361c55d39a69163fa8fd24cf5f\
     83655d23dca3ad961c62f356208552bb9ed529077096966d670c354e4abc9804f1746c08ca18217c32905e462e36ce3b\
     e39e772c180e86039b2783a2ec07a28fb5c55df06f4c52c9de2bcbf6955817183995497cea956ae515d2261898fa0510\
     15728e5a8aacaa68ffffffffffffffff";

/// RFC 3526 section 5: 2^4096 - 2^4032 - 1 + 2^64 * (floor(2^3966 pi) + 240904).
const GROUP_16: &str = "\
     ffffffffffffffffc90fdaa22168c234c4c6628b80dc1cd129024e088a67cc74020bbea63b139b22514a08798e3404dd\
     ef9519b3cd3a431b302b0a6df25f14374fe1356d6d51c245e485b576625e7ec6f44c42e9a637ed6b0bff5cb6f406b7ed\
     ee386bfb5a899fa5ae9f24117c4b1fe649286651ece45b3dc2007cb8a163bf0598da48361c55d39a69163fa8fd24cf5f\
     83655d23dca3ad961c62f356208552bb9ed529077096966d670c354e4abc9804f1746c08ca18217c32905e462e36ce3b\
     e39e772c180e86039b2783a2ec07a28fb5c55df06f4c52c9de2bcbf6955817183995497cea956ae515d2261898fa0510\
     15728e5a8aaac42dad33170d04507a33a85521abdf1cba64ecfb850458dbef0a8aea71575d060c7db3970f85a6e1e4c7\
     abf5ae8cdb0933d71e8c94e04a25619dcee3d2261ad2ee6bf12ffa06d98a0864d87602733ec86a64521f2b18177b200c\
     bbe117577a615d6c770988c0bad946e208e24fa074e5ab3143db5bfce0fd108e4b82d120a92108011a723c12a787e6d7\
     88719a10bdba5b2699c327186af4e23c1a946834b6150bda2583e9ca2ad44ce8dbbbc2db04de8ef92e8efc141fbecaa6\
     287c59474e6bc05d99b2964fa090c3a2233ba186515be7ed1f612970cee2d7afb81bdd762170481cd0069127d5b05aa9\
     93b4ea988d8fddc186ffb7dc90a6c08f4df435c934063199ffffffffffffffff";

/// RFC 3526 section 7: 2^8192 - 2^8128 - 1 + 2^64 * (floor(2^8062 pi) + 4743158).
const GROUP_18: &str = "\
     ffffffffffffffffc90fdaa22168c234c4c6628b80dc1cd129024e088a67cc74020bbea63b139b22514a08798e3404dd\
     ef9519b3cd3a431b302b0a6df25f14374fe1356d6d51c245e485b576625e7ec6f44c42e9a637ed6b0bff5cb6f406b7ed\
     ee386bfb5a899fa5ae9f24117c4b1fe649286651ece45b3dc2007cb8a163bf0598da48361c55d39a69163fa8fd24cf5f\
     83655d23dca3ad961c62f356208552bb9ed529077096966d670c354e4abc9804f1746c08ca18217c32905e462e36ce3b\
     e39e772c180e86039b2783a2ec07a28fb5c55df06f4c52c9de2bcbf6955817183995497cea956ae515d2261898fa0510\
     15728e5a8aaac42dad33170d04507a33a85521abdf1cba64ecfb850458dbef0a8aea71575d060c7db3970f85a6e1e4c7\
     abf5ae8cdb0933d71e8c94e04a25619dcee3d2261ad2ee6bf12ffa06d98a0864d87602733ec86a64521f2b18177b200c\
     bbe117577a615d6c770988c0bad946e208e24fa074e5ab3143db5bfce0fd108e4b82d120a92108011a723c12a787e6d7\
     88719a10bdba5b2699c327186af4e23c1a946834b6150bda2583e9ca2ad44ce8dbbbc2db04de8ef92e8efc141fbecaa6\
     287c59474e6bc05d99b2964fa090c3a2233ba186515be7ed1f612970cee2d7afb81bdd762170481cd0069127d5b05aa9\
     93b4ea988d8fddc186ffb7dc90a6c08f4df435c93402849236c3fab4d27c7026c1d4dcb2602646dec9751e763dba37bd\
     f8ff9406ad9e530ee5db382f413001aeb06a53ed9027d831179727b0865a8918da3edbebcf9b14ed44ce6cbaced4bb1b\
     db7f1447e6cc254b332051512bd7af426fb8f401378cd2bf5983ca01c64b92ecf032ea15d1721d03f482d7ce6e74fef6\
     d55e702f46980c82b5a84031900b1c9e59e7c97fbec7e8f323a97a7e36cc88be0f1d45b7ff585ac54bd407b22b4154aa\
     cc8f6d7ebf48e1d814cc5ed20f8037e0a79715eef29be32806a1d58bb7c5da76f550aa3d8a1fbff0eb19ccb1a313d55c\
     da56c9ec2ef29632387fe8d76e3c0468043e8f663f4860ee12bf2d5b0b7474d6e694f91e6dbe115974a3926f12fee5e4\
     38777cb6a932df8cd8bec4d073b931ba3bc832b68d9dd300741fa7bf8afc47ed2576f6936ba424663aab639c5ae4f568\
     3423b4742bf1c978238f16cbe39d652de3fdb8befc848ad922222e04a4037c0713eb57a81a23f0c73473fc646cea306b\
     4bcbc8862f8385ddfa9d4b7fa2c087e879683303ed5bdd3a062b3cf5b3a278a66d2a13f83f44f82ddf310ee074ab6a36\
     4597e899a0255dc164f31cc50846851df9ab48195ded7ea1b1d510bd7ee74d73faf36bc31ecfa268359046f4eb879f92\
     4009438b481c6cd7889a002ed5ee382bc9190da6fc026e479558e4475677e9aa9e3050e2765694dfc81f56e880b96e71\
     60c980dd98edd3dfffffffffffffffff";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_groups_are_of_safe_primes() {
        // A wrong digit would leave p or (p - 1) / 2 composite, which Fermat's test shows.
        for group in [Group::group14(), Group::group16()] {
            let prime = group.modulus.modulus().as_ref().clone();
            assert!(fermat(&prime));
            assert!(fermat(&(prime >> 1)));
        }
        // Two full exponentiations of 8192 bits would take seconds without optimisation; one suffices.
        assert!(fermat(Group::group18().modulus.modulus().as_ref()));
    }

    #[test]
    fn both_sides_agree() {
        for group in [Group::group14(), Group::group16(), Group::group18()] {
            let ours = Exponent::generate(group.clone()).unwrap();
            let theirs = Exponent::generate(group).unwrap();
            assert_eq!(
                ours.agree(&theirs.public()).unwrap(),
                theirs.agree(&ours.public()).unwrap()
            );
        }
    }

    #[test]
    fn public_values_that_give_the_secret_away_are_refused() {
        let ours = Exponent::generate(Group::group14()).unwrap();
        let prime = ours.group().prime();
        let mut last = prime.clone();
        *last.last_mut().unwrap() -= 1;
        let mut above = prime.to_vec();
        above.insert(0, 1);
        for bad in [&[][..], &[0], &[1], &prime, &last, &above] {
            assert!(matches!(ours.agree(bad), Err(KexError::BadPublicKey)));
        }
        assert!(ours.agree(&[2]).is_ok());
    }

    #[test]
    fn proposed_groups_are_checked() {
        let prime = Group::group14().prime();
        assert!(Group::from_proposal(&prime, &[2]).is_ok());
        assert!(matches!(
            Group::from_proposal(&prime[1..], &[2]),
            Err(KexError::GroupSize { bits: 2040 })
        ));
        assert!(matches!(
            Group::from_proposal(&[0xff; 1025], &[2]),
            Err(KexError::GroupSize { bits: 8200 })
        ));
        assert!(matches!(
            Group::from_proposal(&[], &[2]),
            Err(KexError::GroupSize { bits: 0 })
        ));
        assert!(matches!(
            Group::from_proposal(&prime, &[1]),
            Err(KexError::BadGroup)
        ));
        assert!(matches!(
            Group::from_proposal(&prime, &prime),
            Err(KexError::BadGroup)
        ));
        let mut even = prime.clone();
        *even.last_mut().unwrap() -= 1;
        assert!(matches!(
            Group::from_proposal(&even, &[2]),
            Err(KexError::BadGroup)
        ));
    }

    #[test]
    fn primes_that_do_not_fill_their_words_work() {
        // 2^2203 - 1, a Mersenne prime: 2203 is not a multiple of 64.
        let mut prime = vec![0xff; 276];
        prime[0] = 0x07;
        let group = Group::from_proposal(&prime, &[3]).unwrap();
        let ours = Exponent::generate(group.clone()).unwrap();
        let theirs = Exponent::generate(group).unwrap();
        assert_eq!(
            ours.agree(&theirs.public()).unwrap(),
            theirs.agree(&ours.public()).unwrap()
        );
    }

    /// Returns whether 3^(n-1) = 1 modulo n.
    fn fermat(n: &BoxedUint) -> bool {
        let modulus = BoxedMontyParams::new_vartime(Odd::new(n.clone()).unwrap());
        let one = BoxedUint::one_with_precision(n.bits_precision());
        let three = BoxedUint::from_be_slice(&[3], n.bits_precision()).unwrap();
        BoxedMontyForm::new(three, &modulus)
            .pow(&n.wrapping_sub(&one))
            .retrieve()
            == one
    }
}
