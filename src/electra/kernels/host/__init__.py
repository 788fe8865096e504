"""Loops in C++ for CPUs, compiled where they run; without a compiler plain operations do the same in more passes."""
