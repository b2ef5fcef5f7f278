"""Four-bit weights of GPTQ and AWQ directories, dequantised to plain ones, in numpy.

`layouts` unpacks the matrices of either method, `dequantise_directory` writes a directory of the same model
without quantisation, which is then imported like any other.
"""
