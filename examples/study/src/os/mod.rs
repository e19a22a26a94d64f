//! What the instruments are made of on each platform: sockets that are watched together, clocks of CPU
//! time, affinity, limits. Both sides have the same doors.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub use linux::*;
#[cfg(windows)]
pub use windows::*;
