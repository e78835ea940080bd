"""Feature skew: the images of each client are noisier than those of the one before it."""

import numpy as np
import numpy.typing as npt

from fedadb_app.randomness import numpy_generator


def noise_of(client: int, num_clients: int, most: float) -> float:
    """Return the standard deviation of a client's noise: 0 for the first, `most` for the last.

    As NIID-Bench (Li et al., ICDE 2022) deals noise-based feature skew, in its code.
    """
    return most * client / (num_clients - 1) if num_clients > 1 else 0.0


def with_noise(
    images: npt.NDArray[np.uint8], deviation: float, seed: int, client: int
) -> npt.NDArray[np.uint8]:
    """Return a client's images with Gaussian noise, the same whenever they are read.

    Parameters
    ----------
    images : numpy.ndarray
        uint8, ``(n_k, channels, height, width)``: all that it holds, in its own fixed order.
    deviation : float
        Of the noise, where pixels are from 0 to 1.
    seed : int
        The run's.
    client : int
        Its part of the data set.

    Returns
    -------
    numpy.ndarray
        A copy, uint8, rounded and cut off at 0 and 255.
    """
    rng = numpy_generator(seed, "feature noise", client)
    noisy = rng.standard_normal(images.shape, np.float32)
    noisy *= 255 * deviation
    noisy += images
    return np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
