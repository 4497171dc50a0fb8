# Runs the named test modules of the interpreter and prints what became of each test.
#
# Times, addresses and what tests print are left out, so that two runs print the same bytes.
import gc
import importlib
import io
import os
import random
import sys
import unittest
import warnings

warnings.simplefilter("ignore")
random.seed(1)
sys.setrecursionlimit(1000)
told = os.fdopen(os.dup(1), "w", buffering=1)


class Result(unittest.TestResult):
    def say(self, test, what):
        told.write(f"{test.id()} {what}\n")

    def addSuccess(self, test):
        self.say(test, "ok")

    def addSkip(self, test, why):
        self.say(test, "skipped")

    def addFailure(self, test, error):
        self.say(test, "FAILED")
        sys.stderr.write(self._exc_info_to_string(error, test))

    def addError(self, test, error):
        self.say(test, "ERROR")
        sys.stderr.write(self._exc_info_to_string(error, test))

    def addExpectedFailure(self, test, error):
        self.say(test, "expected failure")

    def addUnexpectedSuccess(self, test):
        self.say(test, "unexpected success")

    def addSubTest(self, test, sub, error):
        if error is not None:
            self.say(sub, "sub FAILED")
            sys.stderr.write(self._exc_info_to_string(error, test))


sys.stdout = io.StringIO()
for name in sys.argv[1:]:
    try:
        module = importlib.import_module("test." + name)
    except unittest.SkipTest:
        told.write(f"{name} skipped\n")
        continue
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    suite(Result())
    gc.collect()
    told.write(f"{name} done\n")
