//! The nouns and rules of a rain. No I/O, and nothing of ours is imported from outside this folder.

/// Money in minor units.
mod cents;
/// A won packet on its way to a credit.
mod claim;
/// A whole rain, as asked for and as recorded.
mod definition;
/// Rain, packet and user ids.
mod ids;
/// The states of a rain and what moves it from one to the next.
mod life;
/// What a rain is made of: its creation and its top-ups.
mod parts;
/// How a total becomes packets.
pub mod split;
/// When rains of a schedule open.
mod times;

pub use cents::{Cents, ParseCentsError};
pub use claim::{Claim, Packet, ParseClaimError};
pub use definition::{Durability, GrabKey, NewRain, ParseDurabilityError, Rain, Window};
pub use ids::{IdError, PacketId, RainId, UserId};
pub use life::{ParseStateError, State, Step, StepError};
pub use parts::{Part, Parts, PartsAllocation, TOP_UPS_MAX, TopUp, TopUpError};
pub use times::{Clock, ONCE_MAX, TimeOfDay, Times, TimesError, UtcOffset, Weekday, Weekly};
