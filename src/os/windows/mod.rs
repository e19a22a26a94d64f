//! Windows: AFD polls through mio, sockets through std and socket2.
//!
//! Four things are different from Unix, and each is hidden here:
//!
//! * A socket is blocking or it is not; a call cannot choose. So all are non-blocking, and who wants to
//!   block waits first ([`bell`]).
//! * mio's readiness is one shot: what was reported is not reported again before it is asked for, which
//!   then looks at what there is. So a read that has found the end of what was there asks for more
//!   ([`registrar`]), and the edges that the scheduler reckons with are there again.
//! * mio registers what it owns. So a registered socket has a second handle, which goes with the
//!   registration.
//! * Ending a socket's input does not wake who waits for it, and resets a connection whose peer goes on
//!   sending. So that is a flag of ours, and a bell.

pub(crate) mod bell;
pub(crate) mod listener;
pub(crate) mod registrar;
pub(crate) mod socket;
