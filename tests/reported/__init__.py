"""Inputs on which public implementations of attention failed, and the runner that puts them to headwise."""
