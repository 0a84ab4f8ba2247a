"""The names of numpy's functions."""

FUNCTIONS = """
abs absolute acos acosh add all allclose amax amin angle any append apply_along_axis apply_over_axes arange
arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argpartition argsort argwhere around array
array2string array_equal array_equiv array_repr array_split array_str asanyarray asarray asarray_chkfinite
ascontiguousarray asfortranarray asin asinh asmatrix astype atan atan2 atanh atleast_1d atleast_2d atleast_3d
average bartlett base_repr binary_repr bincount bitwise_and bitwise_count bitwise_invert bitwise_left_shift
bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman block bmat broadcast_arrays broadcast_shapes
broadcast_to busday_count busday_offset can_cast cbrt ceil choose clip column_stack common_type compress concat
concatenate conj conjugate convolve copy copysign copyto corrcoef correlate cos cosh count_nonzero cov cross
cumprod cumsum cumulative_prod cumulative_sum datetime_as_string datetime_data deg2rad degrees delete diag
diag_indices diag_indices_from diagflat diagonal diff digitize divide divmod dot dsplit dstack ediff1d einsum
einsum_path empty empty_like equal exp exp2 expand_dims expm1 extract eye fabs fill_diagonal fix flatnonzero
flip fliplr flipud float_power floor floor_divide fmax fmin fmod format_float_positional format_float_scientific
frexp from_dlpack frombuffer fromfile fromfunction fromiter frompyfunc fromregex fromstring full full_like gcd
genfromtxt geomspace get_include get_printoptions getbufsize geterr geterrcall gradient greater greater_equal
hamming hanning heaviside histogram histogram2d histogram_bin_edges histogramdd hsplit hstack hypot i0 identity
imag indices info inner insert interp intersect1d invert is_busday isclose iscomplex iscomplexobj isdtype
isfinite isfortran isin isinf isnan isnat isneginf isposinf isreal isrealobj isscalar iterable ix_ kaiser kron
lcm ldexp left_shift less less_equal lexsort linspace load loadtxt log log10 log1p log2 logaddexp logaddexp2
logical_and logical_not logical_or logical_xor logspace mask_indices matmul matrix_transpose matvec max maximum
may_share_memory mean median meshgrid min min_scalar_type minimum mintypecode mod modf moveaxis multiply
nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanpercentile nanprod
nanquantile nanstd nansum nanvar ndim negative nested_iters nextafter nonzero not_equal ones ones_like outer
packbits pad partition percentile permute_dims piecewise place poly polyadd polyder polydiv polyfit polyint
polymul polysub polyval positive pow power printoptions prod promote_types ptp put put_along_axis putmask
quantile rad2deg radians ravel ravel_multi_index real real_if_close reciprocal remainder repeat require reshape
resize result_type right_shift rint roll rollaxis roots rot90 round row_stack save savetxt savez
savez_compressed searchsorted select setdiff1d setxor1d shape shares_memory show_config show_runtime sign
signbit sin sinc sinh size sort sort_complex spacing split sqrt square squeeze stack std subtract sum swapaxes
take take_along_axis tan tanh tensordot test tile trace transpose trapezoid tri tril tril_indices
tril_indices_from trim_zeros triu triu_indices triu_indices_from true_divide trunc typename union1d unique
unique_all unique_counts unique_inverse unique_values unpackbits unravel_index unstack unwrap vander var vdot
vecdot vecmat vsplit vstack where zeros zeros_like
""".split()
